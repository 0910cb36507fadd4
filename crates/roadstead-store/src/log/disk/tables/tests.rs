use super::*;

/// Makes a store of another format.
pub(crate) fn of_format(path: &Path, format: u64) {
    let database = builder().create(path).unwrap();
    fill(&database, &Contents::default()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(meta::META).unwrap().insert("format", format).unwrap();
    transaction.commit().unwrap();
}

/// Makes a redb file that is not a store.
pub(crate) fn of_somebody_else(path: &Path) {
    let database = builder().create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: TableDefinition<&str, &str> = TableDefinition::new("songs");
    transaction.open_table(table).unwrap().insert("a", "b").unwrap();
    transaction.commit().unwrap();
}

/// Makes a store of format 2 (or 1, without a number), as earlier versions did.
pub(crate) fn of_old_format(path: &Path, format: u64, number: u64, contents: &Contents) {
    let database = builder().create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    read::write_old(&transaction, contents).unwrap();
    {
        let mut meta = transaction.open_table(meta::META).unwrap();
        meta.insert("format", format).unwrap();
        meta.insert("compacted", contents.compacted.0).unwrap();
        if format > 1 {
            meta.insert("number", number).unwrap();
        }
    }
    transaction.commit().unwrap();
}

/// Which format a file has.
pub(crate) fn format_of(path: &Path) -> u64 {
    let database = builder().open(path).unwrap();
    let transaction = database.begin_read().unwrap();
    meta::Meta::read(&transaction).unwrap().format
}
