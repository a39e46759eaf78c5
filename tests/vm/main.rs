//! End-to-end tests of lane `vm` that only the guest can run: they move hardware of the machine.
//!
//! `lanes/vm/run` starts them in a virtual machine, with the tests of lane `net` that this machine's kernel cannot run.

#![cfg(test)]

mod host_device;
