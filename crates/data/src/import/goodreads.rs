//! The library export of Goodreads: the books that the person rated.

use super::table::{Table, without_markup};
use super::{ImportError, ImportOptions, Importer, Needs, Sink};
use serde_json::{Map, Value, json};

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "goodreads",
    about: "your ratings of books, with your reviews where you wrote some",
    how_to: "On goodreads.com: My Books, then Import and export in the column on the left, then Export Library. The file\n\
             is goodreads_library_export.csv. Books without a rating are left out.",
    needs: Needs { me: false, columns: false },
    read: Some(read),
};

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for path in &options.sources {
        let table = Table::open(path)?;
        table.require(path, &["Title", "Author", "My Rating"])?;
        table.rows(path, sink, |row, sink| {
            let rating: i64 = match row.cell("My Rating").parse() {
                Ok(0) => {
                    sink.leave(&row.place, "books without a rating");
                    return Ok(());
                }
                Ok(rating @ 1..=5) => rating,
                _ => {
                    sink.leave(&row.place, "ratings that are no number from 0 to 5");
                    return Ok(());
                }
            };
            let mut fields: Map<String, Value> = Map::new();
            fields.insert("title".into(), row.cell("Title").into());
            fields.insert("author".into(), row.cell("Author").into());
            let year = row.filled("Original Publication Year").or(row.filled("Year Published"));
            if let Some(year) = year.and_then(|year| year.parse::<i64>().ok()) {
                fields.insert("published".into(), year.into());
            }
            if let Some(date) = row.filled("Date Read").or(row.filled("Date Added")) {
                fields.insert("date".into(), date.into());
            }
            if let Some(review) = row.filled("My Review") {
                fields.insert("review".into(), without_markup(review).into());
            }
            if let Some(average) = row.cell("Average Rating").parse::<f64>().ok().filter(|average| average.is_finite())
            {
                fields.insert("average".into(), json!(average));
            }
            fields.insert("rating".into(), rating.into());
            sink.take(&row.place, fields)
        })?;
    }
    Ok(())
}
