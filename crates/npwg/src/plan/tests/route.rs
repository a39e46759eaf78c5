//! Whose the default route is.

use super::*;

fn wishes(world: &World) -> Vec<RouteWish> {
    world.plan().delegates.into_iter().map(|d| d.default_route).collect()
}

fn via(list: &[(&str, Option<u32>)]) -> RouteWish {
    let gateways =
        list.iter().map(|(address, metric)| Gateway { address: address.parse().unwrap(), metric: *metric });
    RouteWish::Via { gateways: gateways.collect() }
}

// Requirements: V11-4.1.2.1.9-2, V11-4.1.2.1.9-3, V11-6-1
#[test]
fn the_others_give_the_default_route_up() {
    let world = World::new()
        .networks(r#"[{"name":"plain"},{"name":"plain","default-route":["10.0.0.1","2001:db8::1"]}]"#);
    let give_up = RouteWish::Yield { to: 2, families: Families::Both };
    assert_eq!(wishes(&world), [give_up.clone(), give_up, via(&[("10.0.0.1", None), ("2001:db8::1", None)])]);
    assert_eq!(wishes(&World::new().networks("plain")), [RouteWish::Untouched, RouteWish::Untouched]);
}

// Requirements: M3, conflict C13
#[test]
fn only_the_families_of_the_gateways_move() {
    let families = |gateway: &str| match &wishes(
        &World::new().networks(&format!(r#"[{{"name":"plain","default-route":["{gateway}"]}}]"#)),
    )[0]
    {
        RouteWish::Yield { families, to: 1 } => *families,
        other => panic!("{other:?}"),
    };
    assert_eq!((families("10.0.0.1"), families("2001:db8::1")), (Families::V4, Families::V6));
}

// Requirements: conflict C12
#[test]
fn an_empty_list_leaves_the_gateway_to_the_plugins() {
    let world = World::new().networks(r#"[{"name":"plain","default-route":[]}]"#);
    assert_eq!(wishes(&world), [RouteWish::Yield { to: 1, families: Families::OfHolder }, RouteWish::Keep]);
}

// Requirements: M4, conflict C14
#[test]
fn several_gateways_get_metrics_in_their_order() {
    let world =
        World::new().networks(r#"[{"name":"plain","default-route":["10.0.0.2","2001:db8::1","10.0.0.1"]}]"#);
    assert_eq!(
        wishes(&world)[1],
        via(&[("10.0.0.2", Some(100)), ("2001:db8::1", None), ("10.0.0.1", Some(101))])
    );
    let six = World::new().networks(r#"[{"name":"plain","default-route":["fd00::2","10.0.0.1","fd00::1"]}]"#);
    assert_eq!(wishes(&six)[1], via(&[("fd00::2", Some(100)), ("10.0.0.1", None), ("fd00::1", Some(101))]));
}

// Requirements: conflict C15
#[test]
fn on_the_default_network_nothing_is_taken_from_anybody() {
    let world =
        World::new().default_network(r#"[{"name":"plain","default-route":["10.0.0.1"]}]"#).networks("plain");
    assert_eq!(wishes(&world), [via(&[("10.0.0.1", None)]), RouteWish::Untouched]);
    let both = World::new()
        .default_network(r#"[{"name":"plain","default-route":["10.0.0.1"]}]"#)
        .networks(r#"[{"name":"plain","default-route":["10.0.0.2"]}]"#);
    assert_eq!(both.fails().rule, Rule::DuplicateDefaultRoute);
}
