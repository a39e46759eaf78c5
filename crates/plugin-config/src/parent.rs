//! The option `linkInContainer`, which macvlan, ipvlan and vlan have.

/// Namespace that a parent is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNamespace {
    /// Namespace in which the plugin runs.
    Host,
    /// In the container (`linkInContainer`).
    Container,
}

impl LinkNamespace {
    /// Returns the namespace that `linkInContainer` selects.
    pub fn read(link_in_container: bool) -> LinkNamespace {
        if link_in_container { LinkNamespace::Container } else { LinkNamespace::Host }
    }
}
