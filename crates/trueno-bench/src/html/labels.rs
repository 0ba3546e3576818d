//! Places for labels, so that they cover neither each other nor the marks they name.

use super::axis::text_width;
use super::svg::Anchor;

/// About how high a line of the largest type is.
pub(crate) const LINE: f64 = 16.0;

/// A rectangle that something covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Area {
    pub(crate) fn around((x, y): (f64, f64), radius: f64) -> Self {
        Self { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }
    }

    fn shared(self, other: Self) -> f64 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        width.max(0.0) * height.max(0.0)
    }

    fn size(self) -> f64 {
        (self.right - self.left) * (self.bottom - self.top)
    }
}

/// A label's place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Placed {
    pub(crate) at: (f64, f64),
    pub(crate) anchor: Anchor,
    pub(crate) area: Area,
    /// Returns `true` if it is so far from its mark that a line should lead there.
    pub(crate) far: bool,
}

/// Finds a place for a label near `mark`, inside `bounds` and away from what is `taken`.
pub(crate) fn place(text: &str, (x, y): (f64, f64), bounds: Area, taken: &[Area]) -> Placed {
    let width = text_width(text);
    let mut best =
        (f64::INFINITY, Placed { at: (x, y), anchor: Anchor::Middle, area: Area::around((x, y), 0.0), far: false });
    for (ring, distance) in [11.0, 26.0, 42.0, 60.0].into_iter().enumerate() {
        let diagonal = distance * 0.75;
        for (dx, dy, anchor) in [
            (distance, 0.0, Anchor::Start),
            (-distance, 0.0, Anchor::End),
            (0.0, -distance - 3.0, Anchor::Middle),
            (0.0, distance + 3.0, Anchor::Middle),
            (diagonal, -diagonal, Anchor::Start),
            (diagonal, diagonal, Anchor::Start),
            (-diagonal, -diagonal, Anchor::End),
            (-diagonal, diagonal, Anchor::End),
        ] {
            let (cx, cy) = (x + dx, y + dy);
            let left = match anchor {
                Anchor::Start => cx,
                Anchor::Middle => cx - width / 2.0,
                Anchor::End => cx - width,
            };
            let area = Area { left, top: cy - LINE / 2.0, right: left + width, bottom: cy + LINE / 2.0 };
            let outside = area.size() - area.shared(bounds);
            let covered: f64 = taken.iter().map(|other| area.shared(*other)).sum();
            let cost = 20.0 * outside + 4.0 * covered + distance;
            if cost < best.0 {
                best = (cost, Placed { at: (cx, cy + 4.0), anchor, area, far: ring > 0 });
            }
        }
    }
    best.1
}

/// Moves labels of a column apart: places as near to the wanted ones as a distance of `LINE` and the bounds allow.
pub(crate) fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = vec![0.0; wanted.len()];
    let mut least = top;
    for i in &order {
        places[*i] = wanted[*i].max(least);
        least = places[*i] + LINE;
    }
    let mut most = bottom;
    for i in order.iter().rev() {
        places[*i] = places[*i].min(most);
        most = places[*i] - LINE;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_apart() {
        assert_eq!(apart(&[50.0, 10.0], 0.0, 100.0), [50.0, 10.0]);
        assert_eq!(apart(&[50.0, 50.0, 52.0], 0.0, 100.0), [50.0, 66.0, 82.0]);
        assert_eq!(apart(&[98.0, 99.0], 0.0, 100.0), [84.0, 100.0]);
    }

    #[test]
    fn a_free_side_is_found() {
        let bounds = Area { left: 0.0, top: 0.0, right: 400.0, bottom: 300.0 };
        assert_eq!(place("abc", (200.0, 100.0), bounds, &[]).anchor, Anchor::Start);
        let wall = Area { left: 205.0, top: 0.0, right: 400.0, bottom: 300.0 };
        assert_eq!(place("abc", (200.0, 100.0), bounds, &[wall]).anchor, Anchor::End);
        assert_eq!(place("abc", (395.0, 100.0), bounds, &[]).anchor, Anchor::End);
    }
}
