//! Tests of the default route.

use super::*;

fn actions(world: &World) -> Vec<DefaultRouteAction> {
    world.plan().delegates.into_iter().map(|d| d.default_route).collect()
}

fn via(list: &[(&str, Option<u32>)]) -> DefaultRouteAction {
    let gateways =
        list.iter().map(|(address, metric)| Gateway { address: address.parse().unwrap(), metric: *metric });
    DefaultRouteAction::Via { gateways: gateways.collect() }
}

// Requirements: V11-4.1.2.1.9-2, V11-4.1.2.1.9-3, V11-6-1
#[test]
fn default_route_request_removes_it_from_other_networks() {
    let world = World::new()
        .networks(r#"[{"name":"plain"},{"name":"plain","default-route":["10.0.0.1","2001:db8::1"]}]"#);
    let give_up = DefaultRouteAction::Yield { to: 2, families: Families::Both };
    assert_eq!(
        actions(&world),
        [give_up.clone(), give_up, via(&[("10.0.0.1", None), ("2001:db8::1", None)])]
    );
    assert_eq!(
        actions(&World::new().networks("plain")),
        [DefaultRouteAction::Untouched, DefaultRouteAction::Untouched]
    );
}

// Requirements: M3, conflict C13
#[test]
fn default_route_request_moves_only_families_of_its_gateways() {
    let families = |gateway: &str| match &actions(
        &World::new().networks(&format!(r#"[{{"name":"plain","default-route":["{gateway}"]}}]"#)),
    )[0]
    {
        DefaultRouteAction::Yield { families, to: 1 } => *families,
        other => panic!("{other:?}"),
    };
    assert_eq!((families("10.0.0.1"), families("2001:db8::1")), (Families::V4, Families::V6));
}

// Requirements: conflict C12
#[test]
fn default_route_empty_list_keeps_the_gateway_of_the_plugins() {
    let world = World::new().networks(r#"[{"name":"plain","default-route":[]}]"#);
    assert_eq!(
        actions(&world),
        [DefaultRouteAction::Yield { to: 1, families: Families::OfHolder }, DefaultRouteAction::Keep]
    );
}

// Requirements: M4, conflict C14
#[test]
fn default_route_gateways_get_metrics_in_order() {
    let world =
        World::new().networks(r#"[{"name":"plain","default-route":["10.0.0.2","2001:db8::1","10.0.0.1"]}]"#);
    assert_eq!(
        actions(&world)[1],
        via(&[("10.0.0.2", Some(100)), ("2001:db8::1", None), ("10.0.0.1", Some(101))])
    );
    let six = World::new().networks(r#"[{"name":"plain","default-route":["fd00::2","10.0.0.1","fd00::1"]}]"#);
    assert_eq!(actions(&six)[1], via(&[("fd00::2", Some(100)), ("10.0.0.1", None), ("fd00::1", Some(101))]));
}

// Requirements: conflict C15
#[test]
fn default_route_request_on_the_default_network_removes_none() {
    let world =
        World::new().default_network(r#"[{"name":"plain","default-route":["10.0.0.1"]}]"#).networks("plain");
    assert_eq!(actions(&world), [via(&[("10.0.0.1", None)]), DefaultRouteAction::Untouched]);
    let both = World::new()
        .default_network(r#"[{"name":"plain","default-route":["10.0.0.1"]}]"#)
        .networks(r#"[{"name":"plain","default-route":["10.0.0.2"]}]"#);
    assert_eq!(both.fails().rule, Rule::DuplicateDefaultRoute);
}
