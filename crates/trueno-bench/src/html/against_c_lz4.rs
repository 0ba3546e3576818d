//! Speed against C lz4: a mark for each row on a common scale.

use super::axis::{Axis, Spread};
use super::engine_style;
use super::scatter::is_full;
use super::svg::{Anchor, Svg};
use crate::document::{Direction, Document, Quotient};
use crate::engines::BAR;
use crate::quantity::{figure, threads};

const WIDTH: f64 = 520.0;
const LEFT: f64 = 132.0;
const RIGHT: f64 = WIDTH - 62.0;
const TOP: f64 = 8.0;
const STEP: f64 = 36.0;

/// The rows that are compared, on the most threads: not C lz4 itself, and not copies, which no codec can match.
fn shown(document: &Document) -> Vec<&Quotient> {
    let all = document.run.threads.get();
    let compared =
        |row: &&Quotient| row.engine != BAR && row.engine != "memcpy" && is_full(&row.engine, row.threads, all);
    document.quotients.iter().filter(compared).collect()
}

/// One direction's plot.
pub(crate) fn draw(document: &Document, direction: Direction) -> String {
    let rows = shown(document);
    let value = |row: &Quotient| row.speed(direction);
    let engines: Vec<&str> =
        engine_style::ENGINES.into_iter().filter(|engine| rows.iter().any(|row| row.engine == *engine)).collect();
    let bottom = TOP + STEP * engines.len() as f64;
    let x = Axis::over(rows.iter().map(|row| value(row)).chain([1.0]), Spread::Log, (LEFT, RIGHT));
    let mut svg = Svg::new(WIDTH, bottom + 46.0);
    x.draw_x(&mut svg, (TOP, bottom));
    svg.line("even", (x.place(1.0), TOP), (x.place(1.0), bottom));
    svg.text("axis-name", (RIGHT, bottom + 42.0), Anchor::End, "times the speed of C lz4");
    for (i, engine) in engines.iter().enumerate() {
        let (y, class) = (TOP + STEP * (i as f64 + 0.5), engine_style::class(engine));
        svg.text(&format!("label {class}"), (LEFT - 12.0, y + 4.0), Anchor::End, engine);
        for row in rows.iter().filter(|row| row.engine == *engine) {
            let meaning = format!(
                "{engine} on {}, {}\n{} {} times as fast as C lz4",
                row.corpus,
                threads(row.threads),
                direction.name(),
                figure(value(row))
            );
            svg.shape(
                &format!("mark {class}"),
                (x.place(value(row)), y),
                &engine_style::outline(engine, 4.2),
                &meaning,
            );
        }
        let mean = document.means.iter().rfind(|mean| mean.engine == *engine);
        if let Some(mean) = mean.and_then(|mean| mean.quotient(BAR)) {
            let at = x.place(value(mean));
            svg.line(&format!("series {class}"), (at, y - 11.0), (at, y + 11.0));
            svg.text("value", (RIGHT + 12.0, y + 4.0), Anchor::Start, &format!("{}×", figure(value(mean))));
        }
    }
    let meaning = format!("{} speed against C lz4, by engine", direction.name());
    svg.finish(&format!("against-{}", direction.name()), &meaning)
}
