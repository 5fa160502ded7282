//! The people behind the names and e-mail addresses of commits.

use std::collections::{HashMap, HashSet};

/// People shown in a message.
const PEOPLE_SHOWN: usize = 12;

/// Authors of commits; those that share a name or an e-mail address are one person.
#[derive(Debug, Default)]
pub(super) struct People {
    /// Most commits first.
    people: Vec<Person>,
    /// Whether only some of those that git finds are meant.
    is_choice: bool,
}

#[derive(Debug, Default)]
struct Person {
    /// Names and addresses in small letters, also those of the repository's list of names.
    keys: HashSet<String>,
    /// (name, address) as written in commits, with the number of commits.
    signatures: HashMap<(String, String), usize>,
}

impl Person {
    fn commits_count(&self) -> usize {
        self.signatures.values().sum()
    }

    /// `NAME <ADDRESS> (COUNT)`, with the commonest of both.
    fn shown(&self) -> String {
        let commonest =
            self.signatures.iter().max_by_key(|(signature, count)| (**count, std::cmp::Reverse(*signature)));
        let Some(((name, email), _)) = commonest else { return String::new() };
        format!("{name} <{email}> ({})", self.commits_count())
    }
}

impl People {
    /// From lines of name, address, and both as the repository's list of names has them.
    pub fn new(listing: &str, field_mark: char) -> People {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for line in listing.lines() {
            *counts.entry(line).or_default() += 1;
        }
        let mut people: Vec<Person> = Vec::new();
        for (line, count) in counts {
            let fields: Vec<&str> = line.split(field_mark).map(str::trim).collect();
            let keys = fields.iter().filter(|field| !field.is_empty()).map(|field| field.to_lowercase());
            let signature = [0, 1].map(|place| fields.get(place).copied().unwrap_or("").to_string());
            let mut person = Person { keys: keys.collect(), signatures: HashMap::from([(signature.into(), count)]) };
            let (same, others) = people.into_iter().partition(|other| !other.keys.is_disjoint(&person.keys));
            people = others;
            let same: Vec<Person> = same;
            for other in same {
                person.keys.extend(other.keys);
                for (signature, count) in other.signatures {
                    *person.signatures.entry(signature).or_default() += count;
                }
            }
            people.push(person);
        }
        people.sort_by_cached_key(|person| (std::cmp::Reverse(person.commits_count()), person.shown()));
        People { people, is_choice: false }
    }

    /// A whole e-mail address means only those who have it, even if it is the end of somebody else's.
    pub fn choose(&mut self, author: &str) {
        let address =
            author.rsplit_once('<').map_or(author, |(_, address)| address.trim_end_matches('>')).to_lowercase();
        if address.contains('@') && self.people.iter().any(|person| person.keys.contains(&address)) {
            self.people.retain(|person| person.keys.contains(&address));
            self.is_choice = true;
        }
    }

    pub fn are_several(&self) -> bool {
        self.people.len() > 1
    }

    pub fn commits_count(&self) -> usize {
        self.people.iter().map(Person::commits_count).sum()
    }

    /// Whether a commit with this name and address is by one of them.
    pub fn include(&self, name: &str, email: &str) -> bool {
        let signature = (name.to_string(), email.to_string());
        !self.is_choice || self.people.iter().any(|person| person.signatures.contains_key(&signature))
    }

    pub fn listed(&self) -> String {
        let mut listed = self.people.iter().take(PEOPLE_SHOWN).map(Person::shown).collect::<Vec<_>>().join(", ");
        if self.people.len() > PEOPLE_SHOWN {
            listed += &format!(" and {} more", self.people.len() - PEOPLE_SHOWN);
        }
        listed.chars().filter(|c| !c.is_control()).collect()
    }
}
