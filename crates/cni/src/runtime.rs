//! The caller: loading networks and running their plugins.
//!
//! Source: SPEC 1.1.0 §3; libcni `libcni/api.go`, `libcni/conf.go` (L1–L12).
