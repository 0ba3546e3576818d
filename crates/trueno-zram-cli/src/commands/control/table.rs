//! The table of `stat`: the columns of zramctl, as far as they have a meaning here, the ratio, and the progress of recompression.

use trueno_zram_serve::control::ExportStat;

use super::ListedServer;
use crate::print::{printable::printable, quantity};

const COLUMNS: [&str; 10] =
    ["NAME", "SIZE", "DATA", "COMPR", "TOTAL", "LIMIT", "RATIO", "SAME", "ALGORITHM", "RECOMPRESSED"];

/// The exports of a server.
pub(super) fn of_exports(exports: &[ExportStat]) -> String {
    let header = COLUMNS.map(str::to_owned).to_vec();
    aligned(std::iter::once(header).chain(exports.iter().map(|export| cells(export).to_vec())).collect())
}

/// The exports of several servers, with their processes and control sockets.
pub(super) fn of_servers(servers: &[ListedServer]) -> String {
    let with_server =
        |process: String, cells: Vec<String>, control: String| [vec![process], cells, vec![control]].concat();
    let mut rows = vec![with_server("PID".into(), COLUMNS.map(str::to_owned).to_vec(), "CONTROL".into())];
    for ListedServer { record, exports } in servers {
        let control = record.control.as_ref().map_or("none".to_owned(), |path| printable(&path.to_string_lossy()));
        let mut known: Vec<_> = exports.iter().map(|export| cells(export).to_vec()).collect();
        if known.is_empty() {
            let mut cells = COLUMNS.map(|_| "-".to_owned()).to_vec();
            cells[0] = printable(&record.name);
            cells[1] = quantity::bytes(record.size_bytes);
            known.push(cells);
        }
        rows.extend(known.into_iter().map(|cells| with_server(record.process.to_string(), cells, control.clone())));
    }
    aligned(rows)
}

fn cells(export: &ExportStat) -> [String; 10] {
    let mm = &export.stats.mm;
    let ratio = mm.orig_data_size as f64 / mm.mem_used_total.max(1) as f64;
    [
        printable(&export.name),
        quantity::bytes(export.stats.size_bytes),
        quantity::bytes(mm.orig_data_size),
        quantity::bytes(mm.compr_data_size),
        quantity::bytes(mm.mem_used_total),
        if mm.mem_limit == 0 { "none".to_owned() } else { quantity::bytes(mm.mem_limit) },
        if mm.mem_used_total == 0 { "-".to_owned() } else { format!("{ratio:.2}") },
        quantity::count(mm.same_pages),
        printable(&export.algorithm),
        recompression(export),
    ]
}

/// The pages that recompression has replaced, and how far it is: `1,234 (45.0 % of pass 3)`.
fn recompression(export: &ExportStat) -> String {
    let (stats, progress) = (&export.stats, &export.stats.recompress);
    if progress.passes == 0 && !progress.running {
        return "-".to_owned();
    }
    let replaced = quantity::count(stats.pages_recompressed);
    if progress.running {
        let share = quantity::share(progress.pages_passed, stats.size_bytes / 4096);
        format!("{replaced} ({share} of pass {})", progress.passes + 1)
    } else {
        format!("{replaced} ({} done)", quantity::passes(progress.passes))
    }
}

/// Pads all columns to the same width. All rows have as many cells.
fn aligned(rows: Vec<Vec<String>>) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
