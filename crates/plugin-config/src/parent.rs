//! The option `linkInContainer` of macvlan, ipvlan and vlan.

/// Namespace of a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNamespace {
    /// Namespace in which the plugin runs.
    Host,
    /// Namespace of the container (`linkInContainer`).
    Container,
}

impl LinkNamespace {
    /// Returns the namespace for a value of `linkInContainer`.
    pub fn read(link_in_container: bool) -> LinkNamespace {
        if link_in_container { LinkNamespace::Container } else { LinkNamespace::Host }
    }
}
