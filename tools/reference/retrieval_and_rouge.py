"""Writes crates/data/tests/fixtures/bm25.json (rank-bm25) and crates/eval/tests/fixtures/rouge.json (rouge-score)."""

from common import *  # noqa: F403

from nltk.stem.porter import PorterStemmer
from rank_bm25 import BM25Okapi
from rouge_score.rouge_scorer import RougeScorer

CORPORA = {
    # "the" and "a" are in more than half of the documents: their inverse document frequency is negative.
    "commits": [
        "fix the reader for a truncated file",
        "add a test for the reader",
        "the parser reports the line of a broken record",
        "rename the option and keep a former name",
        "remove the unused import",
        "speed up the tests of the parser: one lock instead of two",
        "Fix The Reader",
        "a a a a the the",
        "fix fix fix the cache",
        "über die Brücke: the reader  with two spaces",
        "the",
        "document a cache of the reader in a readme that is long, much longer than all the others here, and says it twice",
    ],
    "two": ["apples and pears", "pears and plums"],
    "same": ["same words here", "same words here", "same words here"],
    "one": ["a single document"],
    "with_empty": ["", "first words", "other words"],
}
QUERIES = {
    "commits": ["fix the reader", "the", "a the", "cache", "reader reader reader", "unknown words", "", "Reader", "two spaces",
                "  double", "parser: one lock", "über", "fix the cache of the parser"],
    "two": ["apples", "pears", "and", "plums and apples"],
    "same": ["same", "words here"],
    "one": ["single", "a document", "missing"],
    "with_empty": ["words", "first", ""],
}

PAIRS = [
    ("the cat sat on the mat", "the cat sat on the mat"),
    ("the cat sat on the mat", "the dog sat on the log"),
    ("the cat sat on the mat", "mat the on sat cat the"),
    ("", ""), ("", "something"), ("something", ""), ("...", "something"), ("something", "?!"), ("   ", "a b"),
    ("a", "a"), ("a", "b"), ("a a a a", "a"), ("a", "a a a a"), ("a b a b a b", "b a b a"),
    ("Fix the parser.", "fix the Parser"), ("Fix parser, tests; docs!", "fix: parser tests (docs)"),
    ("don't stop", "dont stop"), ("it's", "it s"), ("foo_bar baz-qux", "foo bar baz qux"),
    ("running runners ran", "run runner runs"), ("the studies were studied", "study the studying"),
    ("caresses ponies ties cats", "caress pony tie cat"), ("agreed feed plastered bled", "agree feed plaster bleed"),
    ("relational conditional rational", "relate condition ration"), ("hopefulness goodness formalize", "hopeful good formal"),
    ("police killed the gunman", "the gunman killed police"), ("police killed the gunman", "police kill the gunman"),
    ("naïve café über", "naive cafe uber"), ("你好 世界", "你好 世界"), ("Быстрая лиса", "Быстрая лиса"), ("İstanbul", "istanbul"),
    ("version 1.2.3", "version 1 2 3"), ("x86_64 aarch64", "x86 64"), ("2024", "2024"), ("line one\nline two", "line one line two"),
    ("tab\tseparated\twords", "tab separated words"), ("UPPER lower MiXeD", "upper LOWER mixed"),
    ("Add support for reading from standard input", "Support reading standard input"),
    ("Add a test for the window of the attention and remove the old one", "Remove the old window test, add an attention test"),
    ("one two three four five six seven eight nine ten", "ten nine eight seven six five four three two one"),
    ("one two three four five six seven eight nine ten", "two four six eight ten"),
    ("emoji 🙂 in text", "emoji in text"), ("a" * 40, "a" * 40), ("the the the cat", "the cat the"),
    ("email@example.org https://example.org/a?b=c", "email example org https example org a b c"),
]
STEM_WORDS = """
caresses ponies ties caress cats feed agreed plastered bled motoring sing conflated troubled sized hopping tanned falling
hissing fizzed failing filing happy sky relational conditional rational valenci hesitanci digitizer conformabli radicalli
differentli vileli analogousli vietnamization predication operator feudalism decisiveness hopefulness callousness formaliti
sensitiviti sensibiliti triplicate formative formalize electriciti electrical hopeful goodness revival allowance inference
airliner gyroscopic adjustable defensible irritant replacement adjustment dependent adoption homologou communism activate
angulariti homologous effective bowdlerize probate rate cease controll roll dying lying tying news innings inning outings
outing cannings canning howe proceed exceed succeed skis skies idly gently ugly early only singly flies dies mules denied
died owned humbled meeting stating siezing itemization sensational traditional reference colonizer plotted oed ied ing eed
yes by enjoy enjoyed spied tied generously generate generalization ably possibly logically apologies analogi abilities
controlling fitted fitting user users using used uses parsing parser parses parsed tests testing tested running ran run
documentation documented documents caches cached caching reader readers reads reading lock locked unlocking queries query
""".split()


def write_bm25() -> None:
    corpora = []
    for name, documents in CORPORA.items():
        index = BM25Okapi([d.split(" ") for d in documents])
        queries = [{"query": q, "scores": index.get_scores(q.split(" ")).tolist()} for q in QUERIES[name]]
        corpora.append({"name": name, "documents": documents, "average_length": index.avgdl,
                        "idf": {term: float(value) for term, value in sorted(index.idf.items())}, "queries": queries})
    write_json(fixtures("data") / "bm25.json",
               {"source": "rank-bm25 0.2.2, BM25Okapi(k1=1.5, b=0.75, epsilon=0.25), tokens: text.split(' ')", "corpora": corpora})


def write_rouge() -> None:
    pairs = []
    scorers = {stem: RougeScorer(["rouge1", "rougeL"], use_stemmer=stem) for stem in (False, True)}
    for target, prediction in PAIRS:
        entry = {"target": target, "prediction": prediction}
        for stem, scorer in scorers.items():
            scores = scorer.score(target, prediction)
            entry["stemmed" if stem else "plain"] = {
                name: {"precision": float(s.precision), "recall": float(s.recall), "f1": float(s.fmeasure)} for name, s in scores.items()}
        pairs.append(entry)
    stemmer = PorterStemmer()
    stems = {word: stemmer.stem(word) if len(word) > 3 else word for word in sorted(set(STEM_WORDS))}
    write_json(fixtures("eval") / "rouge.json", {
        "source": "rouge-score 0.1.2 (stems: nltk 3.10.4 PorterStemmer; rouge-score leaves words of up to 3 letters alone)",
        "pairs": pairs, "stems": stems})


if __name__ == "__main__":
    write_bm25()
    write_rouge()
