//! Shrinking of a world with a complaint.
//!
//! Removes each part that the complaint does not need, until every remaining part is needed.

use super::plan::Plan;

/// Returns the smallest world found that is still `bad`. `plan` itself must be bad.
#[must_use]
pub fn shrink(plan: &Plan, bad: impl Fn(&Plan) -> bool) -> Plan {
    let mut smallest = plan.clone();
    let mut attempts = MOST_ATTEMPTS;
    loop {
        let smaller = smaller(&smallest).take(attempts).inspect(|_| attempts -= 1).find(&bad);
        match smaller {
            Some(plan) => smallest = plan,
            None => return smallest,
        }
    }
}

/// Returns worlds with fewer events. Worlds with the largest removals come first.
fn smaller(plan: &Plan) -> impl Iterator<Item = Plan> {
    let without_task = (0..plan.tasks.len()).map(|task| {
        let mut plan = plan.clone();
        plan.tasks.remove(task);
        plan
    });
    let without_trouble = (0..plan.troubles.len()).map(|trouble| {
        let mut plan = plan.clone();
        plan.troubles.remove(trouble);
        plan
    });
    let without_foreigner = (0..plan.foreigners.len()).map(|foreigner| {
        let mut plan = plan.clone();
        plan.foreigners.remove(foreigner);
        plan
    });
    let steps = plan
        .tasks
        .iter()
        .enumerate()
        .flat_map(|(task, of)| (0..of.steps.len()).map(move |step| (task, step)));
    let without_step = steps.map(|(task, step)| {
        let mut plan = plan.clone();
        plan.tasks[task].steps.remove(step);
        plan
    });
    let calmer = [Plan { trickle: None, ..plan.clone() }, Plan { latency: 0, ..plan.clone() }];
    let calmer =
        calmer.into_iter().filter(|calmer| (calmer.trickle, calmer.latency) != (plan.trickle, plan.latency));
    without_task.chain(without_trouble).chain(without_foreigner).chain(without_step).chain(calmer)
}

/// A limit, so that a finding takes at most about a minute.
const MOST_ATTEMPTS: usize = 3_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_needed_goes() {
        let plan = (0..).map(|seed| Plan::of(seed, None)).find(|plan| plan.troubles.len() == 5).unwrap();
        let needed = format!("{:?}", plan.troubles[3].what);
        let has = |plan: &Plan| plan.troubles.iter().any(|trouble| format!("{:?}", trouble.what) == needed);
        let small = shrink(&plan, has);
        assert!(small.tasks.is_empty() && small.troubles.len() == 1 && has(&small), "{small:?}");
        assert_eq!((small.trickle, small.latency), (None, 0));
    }
}
