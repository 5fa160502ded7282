//! A folder in the form of MovieLens: ratings and tags of films, of one person or of many.

use super::table::{Table, whole_rating};
use super::{ImportError, ImportOptions, Importer, Needs, Sink};
use crate::tasks::Task;
use crate::tasks::movie_tag::MOVIE_TAG;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "movielens",
    about: "ratings of films (or with --task movie_tag the tags) in MovieLens' files",
    how_to: "From grouplens.org/datasets/movielens, or from your own account: movielens.org, then Settings, then Export.\n\
             Unpack the archive and give its folder: movies.csv with ratings.csv, or with tags.csv for --task movie_tag.\n\
             Everybody's records are taken, each under the number of the person; --user takes one person's.\n\
             Half stars go up.",
    needs: Needs { me: false, columns: false },
    read: Some(read),
};

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for folder in &options.sources {
        if !folder.is_dir() {
            return Err(ImportError::source(folder, "expected the folder that holds movies.csv and ratings.csv"));
        }
        let films = films(&folder.join("movies.csv"), sink)?;
        let wants_tags = options.task.is_some_and(|task| task.name() == MOVIE_TAG.name());
        let (file, answer) = if wants_tags { ("tags.csv", "tag") } else { ("ratings.csv", "rating") };
        let path = &folder.join(file);
        let table = Table::open(path)?;
        table.require(path, &["userId", "movieId", answer, "timestamp"])?;
        table.rows(path, sink, |row, sink| {
            let person = row.cell("userId");
            if options.user.as_ref().is_some_and(|wanted| wanted != person) {
                sink.leave(&row.place, "records of other people");
                return Ok(());
            }
            let Some((title, genres)) = films.get(row.cell("movieId")) else {
                sink.leave(&row.place, "films that movies.csv does not name");
                return Ok(());
            };
            let mut fields: Map<String, Value> = Map::new();
            fields.insert("user".into(), person.into());
            fields.insert("time".into(), row.cell("timestamp").into());
            fields.insert("movie_id".into(), row.cell("movieId").into());
            fields.insert("title".into(), title.as_str().into());
            fields.insert("genres".into(), genres.clone().into());
            match wants_tags {
                true => fields.insert("tag".into(), row.cell("tag").into()),
                false => {
                    let Some(rating) = whole_rating(row.cell("rating")) else {
                        sink.leave(&row.place, "ratings that are no number from 0.5 to 5");
                        return Ok(());
                    };
                    fields.insert("stars".into(), row.cell("rating").into());
                    fields.insert("rating".into(), rating.into())
                }
            };
            sink.take(&row.place, fields)
        })?;
    }
    Ok(())
}

/// Title and genres of each film.
fn films(path: &Path, sink: &mut Sink) -> Result<HashMap<String, (String, Vec<String>)>, ImportError> {
    let table = Table::open(path)?;
    table.require(path, &["movieId", "title", "genres"])?;
    let mut films = HashMap::new();
    table.rows(path, sink, |row, _| {
        let genres = row.cell("genres").split('|').filter(|genre| !genre.is_empty() && !genre.starts_with('('));
        let genres = genres.map(String::from).collect();
        films.insert(row.cell("movieId").to_string(), (row.cell("title").to_string(), genres));
        Ok(())
    })?;
    Ok(films)
}
