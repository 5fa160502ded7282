//! The export of Letterboxd: the films that the person rated, from its diary, reviews or ratings.

use super::table::{Table, whole_rating, without_markup};
use super::{ImportError, ImportOptions, Importer, Needs, Sink, file_of};
use serde_json::{Map, Value};

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "letterboxd",
    about: "your ratings of films, with your reviews where you wrote some",
    how_to: "On letterboxd.com: Settings, then Data, then Export your data. Unpack the archive and give ratings.csv, or\n\
             reviews.csv or diary.csv, or the folder (then ratings.csv is read). Half stars go up; films without a rating\n\
             are left out.",
    needs: Needs { me: false, columns: false },
    read: Some(read),
};

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for path in &options.sources {
        let path = &file_of(path, "ratings.csv");
        let table = Table::open(path)?;
        table.require(path, &["Date", "Name", "Rating"])?;
        table.rows(path, sink, |row, sink| {
            let Some(stars) = row.filled("Rating") else {
                sink.leave(&row.place, "films without a rating");
                return Ok(());
            };
            let Some(rating) = whole_rating(stars) else {
                sink.leave(&row.place, "ratings that are no number from 0.5 to 5");
                return Ok(());
            };
            let mut fields: Map<String, Value> = Map::new();
            let year = row.filled("Year").map_or(String::new(), |year| format!(" ({year})"));
            fields.insert("title".into(), format!("{}{year}", row.cell("Name")).into());
            fields.insert("date".into(), row.filled("Watched Date").unwrap_or(row.cell("Date")).into());
            if let Some(review) = row.filled("Review") {
                fields.insert("review".into(), without_markup(review).into());
            }
            fields.insert("stars".into(), stars.into());
            fields.insert("rating".into(), rating.into());
            sink.take(&row.place, fields)
        })?;
    }
    Ok(())
}
