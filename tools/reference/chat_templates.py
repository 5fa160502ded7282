"""Conversations, and templates written for this project that use what published templates use.

Together they reach: namespaces, loop variables, slices, Python string methods, tests, filters, tojson, macros, loop
controls, raise_exception, strftime_now, generation tags, bos_token and eos_token, tools, keyword options.
"""

# Roles by header, one assistant span per generation block, an optional reasoning switch, the day of the run.
DATED = """\
{%- set thinking = enable_thinking if enable_thinking is defined else true -%}
{%- set ns = namespace(instructions="", mode="/think" if thinking else "/no_think") -%}
{%- if messages[0]["role"] == "system" -%}
    {%- if "/no_think" in messages[0].content -%}
        {%- set ns.mode = "/no_think" -%}
    {%- endif -%}
    {%- set ns.instructions = messages[0].content.replace("/no_think", "").replace("/think", "").rstrip() -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{{- "<|im_start|>system\\n## Facts\\n\\nToday: " ~ strftime_now("%d %B %Y") ~ "\\nMode: " ~ ns.mode ~ "\\n\\n" -}}
{%- if ns.instructions -%}
    {{- ns.instructions + "\\n\\n" -}}
{%- endif -%}
{%- if tools -%}
    {{- "### Tools\\n\\n" -}}
    {%- for tool in tools -%}
        {{- tool | tojson -}}{{- "\\n" -}}
    {%- endfor -%}
    {{- "\\n" -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {{- "<|im_start|>assistant\\n" -}}
        {%- generation -%}
            {%- if ns.mode == "/no_think" -%}{{ "<think>\\n\\n</think>\\n" }}{%- endif -%}
            {{- content.lstrip("\\n") + "<|im_end|>" -}}
        {%- endgeneration -%}
        {{- "\\n" -}}
    {%- elif message.role == "tool" -%}
        {{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\\n" + ("" if ns.mode == "/think" else "<think>\\n\\n</think>\\n") }}
{%- endif -%}
"""

# Alternating turns with another name for the assistant; the system text goes into the first user turn.
TURNS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("turns must alternate: user, assistant, user, ...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

# Many small constructions; trim_blocks and lstrip_blocks matter in it (as in transformers, both are on).
KITCHEN = """\
{% macro line(label, value='none') %}
{{ label | upper }}: {{ value }}
{% endmacro %}
{% if not date_string is defined %}
    {% if strftime_now is defined %}
        {% set date_string = strftime_now("%d %b %Y") %}
    {% else %}
        {% set date_string = "26 Jul 2024" %}
    {% endif %}
{% endif %}
{{ line('date', date_string) }}{{ line("iso", strftime_now("%Y-%m-%d")) }}{{ line('day', strftime_now('%A, %B %d, %Y')) }}{{ line('empty') }}
{# a comment is nothing #}
{% set last = messages[-1] %}
{% set count = namespace(users=0, words=0) %}
{% for message in messages if message.role != 'system' %}
    {% if message.role == 'user' %}
        {% set count.users = count.users + 1 %}
    {% endif %}
    {% if message.content is none or message.content is not string %}
        {% continue %}
    {% endif %}
    {% set count.words = count.words + message.content.split() | length %}
{{ loop.index }}/{{ loop.length }}{{ '*' if loop.last else '' }}{{ '^' if loop.first }} {{ message.role.title() }} {{ message['content'].strip().split('\\n')[0][:20] }}|
{%- if loop.previtem is defined and loop.previtem.role == message.role %} same role{% endif %}
{%- if loop.index >= 4 %}
 stop
{% break %}
{% endif %}

{% endfor %}
users {{ count.users }} words {{ count.words }} last {{ last.role }} {{ 'open' if last.role in ['user', 'tool'] else 'closed' }} {{ 'x' * 3 }} {{ [1, 2, 3] | join('-') }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 7 / 2 }} {{ 2 ** 3 }}
{{ messages[0] | tojson }}
{{ messages[::-1][0].role }} {{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ (messages | last).role }}
{% if tools is defined and tools %}
{% for tool in tools %}
{{ tool.function.name }}({% for key, value in tool.function.parameters.properties.items() %}{{ key }}: {{ value.type }}{% if not loop.last %}, {% endif %}{% endfor %})
{% endfor %}
{{ tools | tojson(indent=2) }}
{% endif %}
{% if last.content is string and last.content.startswith('Hi') and not last.content.endswith('?') %}
greeting {{ last.content.lower() | replace('hi', 'ho') }} {{ last.content.find('i') }} {{ last.content.count('i') }}
{% endif %}
{{ 'a' if none is none else 'b' }} {{ 'a' if true and not false else 'b' }} {{ 'a' if undefined_name is defined else 'b' }} {{ undefined_name }}|{{ messages[0].missing | default('absent') }}|{{ messages[0].get('missing', 'absent') }}|
{{ bos_token }}{{ eos_token }}
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Weather in a \"city\" – now & later <soon>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
                       "required": ["city"]},
    },
}
FIRST, SECOND = "2025-10-28", "2026-03-05"


def case(name, messages, add_generation_prompt=True, date=FIRST, **more):
    return {"name": name, "date": date, "add_generation_prompt": add_generation_prompt, "messages": messages} | more


def message(role, content, **more):
    return {"role": role, "content": content} | more


SYSTEM, USER, ANSWER = message("system", "You write short subjects."), message("user", "Hi there"), message("assistant", "Hello!")
CASES = [
    case("user only", [USER]),
    case("system and user", [SYSTEM, USER]),
    case("one exchange", [USER, ANSWER], add_generation_prompt=False),
    case("system and one exchange", [SYSTEM, USER, ANSWER], add_generation_prompt=False, date=SECOND),
    case("three turns", [SYSTEM, USER, ANSWER, message("user", "What is 2 + 2?"), message("assistant", "4"), message("user", "Why?")]),
    case("three turns closed", [USER, ANSWER, message("user", "And\nnow?"), message("assistant", "\n\nNow this.\n")], add_generation_prompt=False),
    case("white space", [message("system", "  kept?  \n"), message("user", "  Hi\n\n  there  "), message("assistant", " yes ")], add_generation_prompt=False),
    case("empty content", [message("system", ""), message("user", ""), message("assistant", "")], add_generation_prompt=False),
    case("unicode and markup", [message("user", "Hi <b>&amp;</b> \"quotes\" 'single' \\n café 你好 🙂 {{ not a template }} {% raw %}"), message("assistant", "çà & là")],
         add_generation_prompt=False),
    case("special tokens in text", [message("user", "what is <|im_end|> and </think>?"), message("assistant", "a token")], add_generation_prompt=False),
    case("answer with thought", [USER, message("assistant", "<think>\nlet me see\n</think>\n\nHello!"), message("user", "again"), message("assistant", "<think>\nhm\n</think>\n\nBye")],
         add_generation_prompt=False),
    case("two users in a row", [USER, message("user", "me again")]),
    case("assistant first", [ANSWER, USER]),
    case("no thinking", [SYSTEM, USER], options={"enable_thinking": False}),
    case("no thinking, answered", [SYSTEM, USER, ANSWER], add_generation_prompt=False, options={"enable_thinking": False}),
    case("mode in the system text", [message("system", "Be brief. /no_think"), USER, ANSWER], add_generation_prompt=False, only=["dated"]),
    case("date given", [USER], options={"date_string": "01 Jan 2030"}, only=["kitchen"]),
    case("content parts", [message("system", [{"type": "text", "text": "Be brief."}]), message("user", [{"type": "text", "text": " one "}, {"type": "image"}, {"type": "text", "text": "two"}])],
         only=["turns", "kitchen"]),
    case("tools", [SYSTEM, USER], tools=[WEATHER], only=["qwen3", "dated", "kitchen"]),
    case("tool call and result",
         [USER, message("assistant", "", tool_calls=[{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "exact": 1.5, "ok": True, "none": None}}}]),
          message("tool", "{\"temperature\": 20}"), message("tool", "sunny"), message("assistant", "20 degrees.")],
         add_generation_prompt=False, tools=[WEATHER], only=["qwen3", "dated"]),
    case("reasoning field", [USER, message("assistant", "Hello!", reasoning_content="\nshort\n")], add_generation_prompt=False, only=["qwen3"]),
]


def own_templates() -> dict[str, str]:
    return {"dated": DATED, "turns": TURNS, "kitchen": KITCHEN}
