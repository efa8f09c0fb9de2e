//! Differences between two reports, with confidence.
//!
//! A run was sampled every second, so its metrics have a mean and a spread. Two means differ
//! significantly when the 95% interval of their difference (Welch's t, unequal variances) leaves
//! zero out. Samples of one run follow each other closely in time, so the interval is the least
//! uncertainty there is: another run of the same build may move further.

use super::{Saved, sampled, series, short};

/// One metric of one run in two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Test, run and metric.
    pub what: String,
    /// Mean of the first.
    pub before: f64,
    /// Mean of the second.
    pub after: f64,
    /// 95% interval of the relative change, as shares of the first mean. `None` for figures without
    /// samples and for samples without variance, which are not judged.
    pub interval: Option<(f64, f64)>,
    /// A larger value is worse, better, or neither.
    pub larger: Larger,
}

/// Meaning of a larger value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Larger {
    /// As with throughput.
    Better,
    /// As with latency.
    Worse,
    /// As with the number of connections.
    Neither,
}

/// Comparison of the figures that two files have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Every metric that both have.
    pub differences: Vec<Difference>,
    /// Tests that only one of them has.
    pub unmatched: Vec<String>,
}

impl Difference {
    /// Relative change, as a share of the first mean.
    #[must_use]
    pub fn change(&self) -> f64 {
        if self.before == 0.0 { 0.0 } else { (self.after - self.before) / self.before }
    }

    /// True if the change is more than chance within the run, and larger than one part in a
    /// hundred.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        self.interval.is_some_and(|(low, high)| (low > 0.0 || high < 0.0) && self.change().abs() > 0.01)
    }

    /// True if it is significantly worse.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let worse = match self.larger {
            Larger::Worse => self.after > self.before,
            Larger::Better => self.after < self.before,
            Larger::Neither => false,
        };
        worse && self.is_significant()
    }
}

impl Comparison {
    /// True if any figure became significantly worse.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.differences.iter().any(Difference::is_worse)
    }

    /// One line a metric.
    #[must_use]
    pub fn text(&self) -> String {
        let width = self.differences.iter().map(|each| each.what.chars().count()).max().unwrap_or(0);
        let mut out =
            format!("{:<width$}  {:>10}  {:>10}  {:>8}  95% interval\n", "", "before", "after", "change");
        for each in &self.differences {
            let interval = match each.interval {
                Some((low, high)) => format!("{:+.1}% to {:+.1}%", low * 100.0, high * 100.0),
                None => "not judged".to_owned(),
            };
            let verdict = match (each.is_worse(), each.is_significant()) {
                (true, _) => "  worse",
                (false, true) if each.larger != Larger::Neither => "  better",
                (false, true) => "  differs",
                (false, false) => "",
            };
            out.push_str(&format!(
                "{:<width$}  {:>10}  {:>10}  {:>+7.1}%  {interval}{verdict}\n",
                each.what,
                short(each.before),
                short(each.after),
                each.change() * 100.0,
            ));
        }
        for test in &self.unmatched {
            out.push_str(&format!("only in one of them: {test}\n"));
        }
        out
    }
}

/// Compares what two files have in common: tests by name, runs by name, sampled metrics, and rows
/// of figures.
#[must_use]
pub fn compare(before: &[Saved], after: &[Saved]) -> Comparison {
    let mut found = Comparison::default();
    for old in before {
        let Some(new) = after.iter().find(|new| new.test() == old.test()) else {
            found.unmatched.push(old.test().to_owned());
            continue;
        };
        for run in old.list("runs") {
            let Some(other) = new.list("runs").iter().find(|other| other["name"] == run["name"]) else {
                continue;
            };
            for metric in sampled(run) {
                let values =
                    |run| series(run, &metric).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
                let (a, b) = (values(run), values(other));
                if let Some((before, after, interval)) = welch(&a, &b) {
                    let name = run["name"].as_str().unwrap_or_default();
                    let what = format!("{}, {name}: {metric}", old.test());
                    found.differences.push(Difference {
                        what,
                        before,
                        after,
                        interval,
                        larger: larger(&metric),
                    });
                }
            }
        }
        for row in old.list("rows") {
            let Some(other) = new.list("rows").iter().find(|other| other["what"] == row["what"]) else {
                continue;
            };
            if let (Some(before), Some(after)) = (row["measured"].as_f64(), other["measured"].as_f64()) {
                let larger = if row["better"] == "lower" { Larger::Worse } else { Larger::Better };
                let (what, unit) =
                    (row["what"].as_str().unwrap_or_default(), row["unit"].as_str().unwrap_or_default());
                let what = format!("{}: {what} [{unit}]", old.test());
                found.differences.push(Difference { what, before, after, interval: None, larger });
            }
        }
    }
    let only_new = after.iter().filter(|new| before.iter().all(|old| old.test() != new.test()));
    found.unmatched.extend(only_new.map(|new| new.test().to_owned()));
    found
}

fn larger(metric: &str) -> Larger {
    match metric {
        name if name.ends_with("_ms") || name.ends_with("_cores") || name.ends_with("_bytes") => {
            Larger::Worse
        }
        "frames_per_s" | "messages_out_per_s" => Larger::Better,
        _ => Larger::Neither,
    }
}

/// Two means, and the interval of their difference as shares of the first.
type Means = (f64, f64, Option<(f64, f64)>);

/// Both means with the 95% interval.
fn welch(a: &[f64], b: &[f64]) -> Option<Means> {
    let moments = |values: &[f64]| {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        (n, mean, spread / n)
    };
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let ((n_a, mean_a, var_a), (n_b, mean_b, var_b)) = (moments(a), moments(b));
    // Samples without variance say nothing about chance: the next run may differ as much.
    if a.len() < 3 || b.len() < 3 || mean_a == 0.0 || is_constant(a) || is_constant(b) {
        return Some((mean_a, mean_b, None));
    }
    let error = (var_a + var_b).sqrt();
    // Welch and Satterthwaite.
    let freedom = (var_a + var_b).powi(2) / (var_a.powi(2) / (n_a - 1.0) + var_b.powi(2) / (n_b - 1.0));
    let reach = student_95(freedom) * error;
    let difference = mean_b - mean_a;
    let (low, high) = ((difference - reach) / mean_a, (difference + reach) / mean_a);
    Some((mean_a, mean_b, Some((low.min(high), low.max(high)))))
}

fn is_constant(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq())
}

/// The two-sided 95% point of Student's t. Cornish and Fisher's expansion, within 0.5% from 3
/// degrees of freedom on.
fn student_95(freedom: f64) -> f64 {
    const Z: f64 = 1.959_964;
    let n = freedom.max(2.0);
    let (z3, z5, z7) = (Z.powi(3), Z.powi(5), Z.powi(7));
    Z + (z3 + Z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * n * n * n)
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (freedom, expected) in [(4.0, 2.776), (10.0, 2.228), (30.0, 2.042), (1e6, 1.960)] {
            let found = student_95(freedom);
            assert!((found / expected - 1.0).abs() < 0.005, "{freedom}: {found}");
        }
    }

    #[test]
    fn chance_is_told_from_change() {
        let before = [example(10.0, 10)];
        let latency = |after: f64| {
            let found = compare(&before, &[example(after, 10)]);
            let latency = found.differences.iter().find(|each| each.what.ends_with("p50_ms")).cloned();
            (found.is_worse(), latency.expect("it was sampled"))
        };
        let (worse, same) = latency(10.1);
        assert!(!worse && !same.is_significant(), "{same:?}");
        let (worse, slower) = latency(12.0);
        assert!(worse && slower.is_worse() && (slower.change() - 0.2).abs() < 1e-9, "{slower:?}");
        let (worse, faster) = latency(8.0);
        assert!(!worse && faster.is_significant(), "{faster:?}");
    }

    #[test]
    fn samples_without_variance_are_not_judged() {
        let moving = [1.0, 2.0, 3.0, 4.0];
        for (a, b) in [([5.0; 4], [6.0; 4]), ([5.0; 4], moving), (moving, [5.0; 4])] {
            assert!(matches!(welch(&a, &b), Some((_, _, None))), "{a:?}, {b:?}");
        }
    }

    #[test]
    fn a_figure_alone_has_no_interval_and_missing_tests_are_named() {
        let found = compare(&[example(10.0, 10)], &[example(10.0, 2)]);
        assert!(found.differences.iter().all(|each| each.interval.is_none()));
        let nothing = compare(&[example(10.0, 10)], &[]);
        assert_eq!((nothing.differences.len(), nothing.unmatched.len()), (0, 1));
        let text = compare(&[example(10.0, 10)], &[example(20.0, 10)]).text();
        assert!(text.contains("worse") && text.contains("+100.0%"), "{text}");
    }
}
