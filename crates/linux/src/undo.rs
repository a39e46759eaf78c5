//! Steps back: what was done is undone in reverse order unless it is committed.
//!
//! Setup pushes a step after each effect; leaving early undoes them all.
//! A step that fails does not stop the others: undoing collects, it does not give up.

/// The steps back, newest last. Dropping it takes them.
#[must_use = "dropping it undoes everything at once"]
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Undo<'a> {
    /// Nothing to undo yet.
    pub fn new() -> Undo<'a> {
        Undo { steps: Vec::new() }
    }

    /// Remembers how to undo what was just done. The step must not panic and ignores what is gone.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
        self.steps.push(Box::new(step));
    }

    /// Everything succeeded: forget the steps.
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
    fn steps_run_newest_first_and_not_after_commit() {
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
