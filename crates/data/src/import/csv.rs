//! Tables with columns of any names.

use super::table::Table;
use super::{ImportError, ImportOptions, Importer, Needs, Sink};
use serde_json::{Map, Value};

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "csv",
    about: "a table (CSV or TSV): each row a record, columns named with --map",
    how_to: "Save the sheet as CSV (UTF-8) in your spreadsheet program, with the names of the columns in the first line.\n\
             Commas, semicolons and tabs are told apart. Say which column is which field of a record:\n\
             \n  selftune import csv diary.csv --map text=entry,time=day\n  \
             selftune import csv mails.tsv --map prompt=question,completion=answer\n  \
             selftune import csv reviews.csv --map text=review,rating=stars --task rating\n\n\
             Without --map the columns keep their names.",
    needs: Needs { me: false, columns: true },
    read: Some(read),
};

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for (place, (field, column)) in options.columns.iter().enumerate() {
        if let Some((_, first)) = options.columns[..place].iter().find(|(earlier, _)| earlier == field) {
            let reason = format!("--map names the field \"{field}\" twice: columns \"{first}\" and \"{column}\"");
            return Err(ImportError::Option(reason));
        }
    }
    for path in &options.sources {
        let table = Table::open(path)?;
        let columns: Vec<(String, String)> = match options.columns.is_empty() {
            true => table.names.iter().map(|name| (name.clone(), name.clone())).collect(),
            false => options.columns.clone(),
        };
        let wanted: Vec<&str> = columns.iter().map(|(_, column)| column.as_str()).collect();
        table.require(path, &wanted)?;
        table.rows(path, sink, |row, sink| {
            let mut fields: Map<String, Value> = Map::new();
            for (field, column) in &columns {
                if let Some(cell) = row.filled(column) {
                    fields.insert(field.clone(), cell.into());
                }
            }
            if let Some(task) = options.task {
                fields.insert("task".to_string(), task.name().into());
            }
            sink.take(&row.place, fields)
        })?;
    }
    Ok(())
}
