//! Axes: values to places, and ticks at round numbers.

use super::svg::{Anchor, Svg};

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    Linear,
    Log,
}

/// Values of one axis, and where they lie.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    spread: Spread,
    values: (f64, f64),
    places: (f64, f64),
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    /// From the smallest to the largest value, with room to spare and ticks at round numbers.
    pub(crate) fn over(values: impl Iterator<Item = f64>, spread: Spread, places: (f64, f64)) -> Self {
        let finite = values.filter(|value| value.is_finite() && (spread == Spread::Linear || *value > 0.0));
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), value| (l.min(value), h.max(value)));
        let (low, high) = if low > high { (1.0, 2.0) } else { (low, high) };
        match spread {
            Spread::Linear => {
                let span = (high - low).max(high.abs() * 1e-3).max(1e-9);
                let values = (low - 0.06 * span, high + 0.06 * span);
                Self { spread, values, places, ticks: linear_ticks(values) }
            }
            Spread::Log => {
                let span = (high / low).max(1.5).powf(0.08);
                let values = (low / span, high * span);
                Self { spread, values, places, ticks: log_ticks(values) }
            }
        }
    }

    /// From 0 on.
    pub(crate) fn from_zero(high: f64, places: (f64, f64)) -> Self {
        let values = (0.0, high.max(1e-9));
        Self { spread: Spread::Linear, values, places, ticks: linear_ticks(values) }
    }

    /// A logarithmic axis with ticks at these values, the first and last of which are its ends.
    pub(crate) fn at(ticks: Vec<f64>, places: (f64, f64)) -> Self {
        let (low, high) = (ticks.first().copied().unwrap_or(1.0), ticks.last().copied().unwrap_or(1.0));
        // A single value stands in the middle.
        let values = if high > low { (low, high) } else { (low / 2.0, low * 2.0) };
        Self { spread: Spread::Log, values, places, ticks }
    }

    pub(crate) fn place(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let share = match self.spread {
            Spread::Linear => (value - low) / (high - low),
            Spread::Log => (value / low).ln() / (high / low).ln(),
        };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// Grid lines and their values at the left.
    pub(crate) fn draw_y(&self, svg: &mut Svg, (left, right): (f64, f64)) {
        for tick in &self.ticks {
            let y = self.place(*tick);
            svg.line("gridline", (left, y), (right, y));
            svg.text("tick", (left - 8.0, y + 4.0), Anchor::End, &number(*tick));
        }
    }

    /// Grid lines and their values below, as many as have room; the last one always has.
    pub(crate) fn draw_x(&self, svg: &mut Svg, (top, bottom): (f64, f64)) {
        let mut free_until = f64::INFINITY;
        for tick in self.ticks.iter().rev() {
            let (x, text) = (self.place(*tick), number(*tick));
            svg.line("gridline", (x, top), (x, bottom));
            let half = text_width(&text) / 2.0;
            if x + half + 4.0 <= free_until {
                svg.text("tick", (x, bottom + 19.0), Anchor::Middle, &text);
                free_until = x - half;
            }
        }
    }
}

/// About how wide a text is in the largest type it is shown in.
pub(crate) fn text_width(text: &str) -> f64 {
    7.9 * text.chars().count() as f64
}

/// `0.05`, `2.5`, `1,024`.
pub(crate) fn number(value: f64) -> String {
    let decimals =
        (0..4).find(|d| (value * 10f64.powi(*d) - (value * 10f64.powi(*d)).round()).abs() < 1e-6).unwrap_or(3);
    let decimals = usize::try_from(decimals).unwrap_or(0);
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), String::new()), |(w, r)| (w, format!(".{r}")));
    match whole.parse() {
        Ok(whole) => crate::quantity::count(whole) + &rest,
        Err(_) => text,
    }
}

/// About five round numbers: 1, 2 or 5 of some power of ten apart.
fn linear_ticks((low, high): (f64, f64)) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough).unwrap_or(rough);
    let mut ticks = Vec::new();
    let mut n = (low / step).ceil();
    while n * step <= high * (1.0 + 1e-9) && ticks.len() < 20 {
        ticks.push(n * step);
        n += 1.0;
    }
    ticks
}

/// 1, 2 and 5 of every power of ten; the ones alone, or every other of them, where those are too many.
fn log_ticks((low, high): (f64, f64)) -> Vec<f64> {
    let decades = (high / low).log10();
    let multiples: &[f64] = match decades {
        d if d < 0.35 => &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        d if d < 0.8 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        d if d < 2.8 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let mut ticks = Vec::new();
    let mut power = 10f64.powf(low.log10().floor());
    while power <= high && ticks.len() < 40 {
        ticks.extend(multiples.iter().map(|m| m * power).filter(|tick| (low..=high).contains(tick)));
        power *= 10.0;
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(linear_ticks((0.0, 9.3)), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(linear_ticks((0.9, 4.1)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(log_ticks((0.25, 12.0)), [0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(log_ticks((0.3, 800.0)), [1.0, 10.0, 100.0]);
        assert_eq!([0.05, 2.5, 3.0, 1024.0, 10_000.0].map(number), ["0.05", "2.5", "3", "1,024", "10,000"]);
    }

    #[test]
    fn values_lie_between_the_ends() {
        let axis = Axis::over([1.0, 10.0, 100.0].into_iter(), Spread::Log, (300.0, 0.0));
        assert!((axis.place(10.0) - 150.0).abs() < 1e-9);
        assert!(axis.place(1.0) < 300.0 && axis.place(100.0) > 0.0);
        assert!((Axis::at(vec![4.0], (0.0, 10.0)).place(4.0) - 5.0).abs() < 1e-9);
        let nothing = Axis::over(std::iter::empty(), Spread::Log, (0.0, 1.0));
        assert!(nothing.place(1.5).is_finite());
        let same = Axis::over([2.0, 2.0].into_iter(), Spread::Linear, (0.0, 1.0));
        assert!((same.place(2.0) - 0.5).abs() < 1e-9);
    }
}
