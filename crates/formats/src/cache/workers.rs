//! Work on many tensors at once with results in order and bounded memory.

/// Calls `work` on every item, on as many threads as there are processors, and `take` on this thread with each item and
/// its result, in order. At most one result a thread waits to be taken. Stops at the first error of `take`.
pub(super) fn in_order<T: Sync, R: Send, E>(
    items: &[T],
    work: &(dyn Fn(&T) -> R + Sync),
    mut take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    for batch in items.chunks(threads) {
        let results: Vec<R> = std::thread::scope(|scope| {
            let running: Vec<_> = batch[1..].iter().map(|item| scope.spawn(move || work(item))).collect();
            let first = work(&batch[0]);
            let join = |handle: std::thread::ScopedJoinHandle<'_, R>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            std::iter::once(first).chain(running.into_iter().map(join)).collect()
        });
        for (item, result) in batch.iter().zip(results) {
            take(item, result)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn results_come_in_order_and_an_error_stops() {
        let items: Vec<usize> = (0..100).collect();
        let mut taken = Vec::new();
        let result = in_order(&items, &|item| item * 3, |item, result| {
            taken.push(result);
            if *item == 41 { Err("stop") } else { Ok(()) }
        });
        assert_eq!(result, Err("stop"));
        assert_eq!(taken, (0..=41).map(|item| item * 3).collect::<Vec<_>>());
    }
}
