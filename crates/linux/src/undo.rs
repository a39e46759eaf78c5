//! Undo steps: unless a setup is committed, the effects are undone in reverse order.
//!
//! The setup pushes a step after each effect, and an early return undoes them all. If one step fails, the others still
//! run.

/// Undo steps, newest last. Dropping the value executes them.
#[must_use = "dropping it undoes everything at once"]
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Undo<'a> {
    /// Returns a list without steps.
    pub fn new() -> Undo<'a> {
        Undo { steps: Vec::new() }
    }

    /// Adds the step that undoes the last effect. The step must not panic, and must ignore objects that no longer
    /// exist.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
        self.steps.push(Box::new(step));
    }

    /// Discards the steps, because everything succeeded.
    pub fn commit(mut self) {
        self.steps.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            step();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn undo_steps_run_newest_first_and_not_after_commit() {
        let log = RefCell::new(Vec::new());
        let mut undo = Undo::new();
        undo.push(|| log.borrow_mut().push("first"));
        undo.push(|| log.borrow_mut().push("second"));
        drop(undo);
        assert_eq!(*log.borrow(), ["second", "first"]);

        let mut undo = Undo::new();
        undo.push(|| log.borrow_mut().push("never"));
        undo.commit();
        assert_eq!(log.borrow().len(), 2);
    }
}
