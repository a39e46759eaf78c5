//! Configurations: a base for each plugin, and rows with options that are set in it.

/// Usual configuration of a plugin.
pub(crate) struct Base {
    /// Name of the plugin.
    pub(crate) plugin: &'static str,
    /// Options of the plugin.
    pub(crate) keys: &'static str,
    /// Configuration of the previous plugin in a chain, which creates `eth0`; empty without one.
    pub(crate) front: &'static str,
    /// Differences between the two plugins with this configuration.
    pub(crate) differs: &'static [Difference],
}

/// Step in which the two plugins differ, the reason, and the CNI versions (all, if none is named).
pub(crate) type Difference = (&'static str, &'static str, &'static [&'static str]);

/// Configuration to compare: the plugin's base configuration with these options.
pub(crate) struct Row {
    /// Name of the plugin.
    pub(crate) plugin: &'static str,
    /// Options as JSON; the key `CNI_ARGS` sets the environment variable instead.
    pub(crate) keys: &'static str,
    /// Steps in which the two plugins differ.
    pub(crate) differs: &'static [Difference],
    /// Whether Debian's plugins do not support it.
    pub(crate) is_newer: bool,
}

const fn row(plugin: &'static str, keys: &'static str) -> Row {
    Row { plugin, keys, differs: &[], is_newer: false }
}

impl Row {
    const fn but(mut self, differs: &'static [Difference]) -> Row {
        self.differs = differs;
        self
    }

    const fn newer(mut self) -> Row {
        self.is_newer = true;
        self
    }
}

/// Configuration of the plugin that creates the interface of a chained plugin.
const FRONT: &str = r#"{"type":"bridge","bridge":"br0","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}"#;

/// Base configuration of each plugin.
pub(crate) const BASES: &[Base] = &[
    Base {
        plugin: "bridge",
        keys: r#"{"bridge":"br0","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "macvlan",
        keys: r#"{"master":"up0","ipam":{"type":"static","addresses":[{"address":"192.0.2.10/24"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "ipvlan",
        keys: r#"{"master":"up0","ipam":{"type":"static","addresses":[{"address":"192.0.2.10/24"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "vlan",
        keys: r#"{"master":"up0","vlanId":5,"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "dummy",
        keys: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "tap",
        keys: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "ptp",
        keys: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "loopback",
        keys: r#"{}"#,
        front: "",
        differs: &[
            ("4 result", "the Go plugin returns another version than requested", &["0.1.0", "0.2.0"]),
            (
                "4 result",
                "the Go plugin omits the address family that these versions require",
                &["0.3.0", "0.3.1", "0.4.0"],
            ),
        ],
    },
    Base {
        plugin: "host-device",
        keys: r#"{"device":"dev0","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "tuning",
        keys: r#"{"mtu":1400}"#,
        front: FRONT,
        differs: &[(
            "4 result",
            "the Go plugin omits the address family that these versions require",
            &["0.3.0", "0.3.1", "0.4.0"],
        )],
    },
    Base {
        plugin: "sbr",
        keys: r#"{}"#,
        front: FRONT,
        differs: &[
            ("2 pod after ADD", "the Go plugin also copies the route of the kernel", &[]),
            ("7 pod after DEL", "the Go plugin leaves the copied route", &[]),
        ],
    },
    Base {
        plugin: "bandwidth",
        keys: r#"{"ingressRate":8000000,"ingressBurst":800000,"egressRate":80000000,"egressBurst":1000000}"#,
        front: FRONT,
        differs: &[],
    },
    Base {
        plugin: "portmap",
        keys: r#"{"backend":"iptables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}"#,
        front: FRONT,
        differs: &[
            (
                "4 result",
                "the Go plugin omits the address family that these versions require",
                &["0.3.0", "0.3.1", "0.4.0"],
            ),
            ("5 CHECK", "the Go plugin does not find its own rules", &[]),
        ],
    },
    Base {
        plugin: "vrf",
        keys: r#"{"vrfname":"blue"}"#,
        front: FRONT,
        differs: &[
            ("7 pod after DEL", "weft restores the default routes", &["0.3.1", "0.4.0", "1.0.0", "1.1.0"]),
            ("1 ADD", "the Go plugin does not support this version", &["0.3.0"]),
        ],
    },
    Base {
        plugin: "firewall",
        keys: r#"{"backend":"iptables"}"#,
        front: FRONT,
        differs: &[
            ("3 host after ADD", "rules of weft have an owner tag", &[]),
            ("1 ADD", "the Go plugin does not support these versions", &["0.3.0", "0.3.1"]),
        ],
    },
    Base {
        plugin: "static",
        keys: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}"#,
        front: "",
        differs: &[],
    },
    Base {
        plugin: "host-local",
        keys: r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#,
        front: "",
        differs: &[],
    },
];

/// Options of the Go plugins v1.9.1 that the rows compare. Other options have separate files (`dhcp.rs`,
/// `host_local.rs`, `firewalld.rs`).
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    (
        "bridge",
        "bridge isGateway isDefaultGateway forceAddress ipMasq ipMasqBackend mtu hairpinMode promiscMode vlan vlanTrunk minID \
         maxID id preserveDefaultVlan macspoofchk enabledad disableContainerInterface portIsolation args runtimeConfig CNI_ARGS dns",
    ),
    ("macvlan", "master mode mtu mac linkInContainer bcqueuelen runtimeConfig CNI_ARGS dns"),
    ("ipvlan", "master mode mtu linkInContainer dns"),
    ("vlan", "master vlanId mtu linkInContainer dns"),
    ("ptp", "ipMasq ipMasqBackend mtu dns"),
    ("host-device", "device hwaddr kernelpath pciBusID runtimeConfig deviceID"),
    ("dummy", "ipam dns"),
    ("tap", "multiQueue mtu mac owner group selinuxContext bridge runtimeConfig CNI_ARGS dns"),
    (
        "portmap",
        "backend snat conditionsV4 conditionsV6 masqAll markMasqBit externalSetMarkChain hostPort containerPort protocol hostIP",
    ),
    ("firewall", "backend iptablesAdminChainName ingressPolicy"),
    ("bandwidth", "ingressRate ingressBurst egressRate egressBurst runtimeConfig"),
    ("sbr", "table"),
    ("tuning", "dataDir sysctl mac promisc mtu txQLen allmulti runtimeConfig args CNI_ARGS"),
    ("vrf", "vrfname table"),
    ("static", "addresses address gateway routes dns runtimeConfig args CNI_ARGS"),
    ("host-local", "subnet ranges rangeStart rangeEnd gateway routes runtimeConfig args"),
];

/// Difference of a DEL with nftables where iptables works over nftables.
const EMPTY_NAT_TABLE: &[Difference] =
    &[("8 host after DEL", "the Go plugin also runs iptables, which creates an empty table", &[])];

/// Rows of all plugins.
pub(crate) const ROWS: &[Row] = &[
    row("bridge", r#"{"isGateway":true}"#),
    row("bridge", r#"{"isDefaultGateway":true}"#),
    row("bridge", r#"{"isGateway":true,"ipMasq":true,"ipMasqBackend":"iptables"}"#),
    row("bridge", r#"{"ipMasq":true,"ipMasqBackend":"iptables"}"#),
    row("bridge", r#"{"mtu":1400}"#),
    row("bridge", r#"{"hairpinMode":true}"#),
    row("bridge", r#"{"promiscMode":true}"#),
    row("bridge", r#"{"hairpinMode":true,"promiscMode":true}"#),
    row("bridge", r#"{"forceAddress":true,"isGateway":true}"#),
    row("bridge", r#"{"vlan":5}"#),
    row("bridge", r#"{"vlan":4095}"#),
    row("bridge", r#"{"vlan":-1}"#),
    row("bridge", r#"{"ipam":{}}"#).but(&[("5 CHECK", "the Go plugin fails without addresses", &[])]),
    row("bridge", r#"{"bridge":""}"#).but(&[("1 ADD", "weft uses the default for an empty name", &[])]),
    row("bridge", r#"{"bridge":"br0123456789012345"}"#),
    row("bridge", r#"{"bridge":"lo"}"#),
    row("bridge", r#"{"mtu":"x"}"#),
    row("bridge", r#"{"isGateway":"yes"}"#),
    row("bridge", r#"{"enabledad":true}"#),
    row("bridge", r#"{"dns":{"nameservers":["10.1.0.53"],"domain":"d","search":["a"],"options":["o"]}}"#),
    row("bridge", r#"{"runtimeConfig":{"mac":"02:00:00:00:00:07"}}"#),
    row("bridge", r#"{"runtimeConfig":{"mac":"x"}}"#),
    row("bridge", r#"{"args":{"cni":{"mac":"02:00:00:00:00:08"}}}"#),
    row(
        "bridge",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]}}"#,
    ),
    row(
        "bridge",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]},"isGateway":true}"#,
    ),
    row(
        "bridge",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]},"isDefaultGateway":true}"#,
    ),
    row(
        "bridge",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]},"isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"iptables"}"#,
    ),
    row(
        "bridge",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.7.0.0/16","gw":"10.1.0.9"}]}}"#,
    ),
    row(
        "bridge",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}],"routes":[{"dst":"10.7.0.0/16"},{"dst":"fd07::/64","gw":"fd01::9"}]}}"#,
    ).but(&[("5 CHECK", "the Go plugin looks for the route without its gateway", &[])]),
    row("bridge", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/32"}]}}"#).but(&[("5 CHECK", "the Go plugin does not find an address with prefix length 32", &[])]),
    row("bridge", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]},"isGateway":true}"#),
    row("bridge", r#"{"ipam":{"type":"static","addresses":[]}}"#),
    row("bridge", r#"{"ipam":{"type":"nowhere"}}"#),
    row("bridge", r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#),
    row(
        "bridge",
        r#"{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd01::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]},"isGateway":true}"#,
    ),
    row("bridge", r#"{"macspoofchk":false}"#),
    row("bridge", r#"{"macspoofchk":true}"#),
    row("bridge", r#"{"CNI_ARGS":"IgnoreUnknown=1;MAC=02:00:00:00:00:09"}"#),
    row("bridge", r#"{"ipMasq":true,"ipMasqBackend":"nftables"}"#).newer().but(EMPTY_NAT_TABLE),
    row("bridge", r#"{"ipMasq":true,"ipMasqBackend":"x"}"#).newer(),
    row("bridge", r#"{"vlanTrunk":[{"id":5},{"minID":10,"maxID":12}]}"#).newer(),
    row("bridge", r#"{"vlanTrunk":[{"minID":5}]}"#).newer(),
    row("bridge", r#"{"vlan":5,"vlanTrunk":[{"id":7}],"preserveDefaultVlan":true}"#).newer(),
    row("bridge", r#"{"preserveDefaultVlan":true}"#).newer(),
    row("bridge", r#"{"disableContainerInterface":true}"#).newer(),
    row("bridge", r#"{"disableContainerInterface":true,"ipam":{}}"#).newer().but(&[("5 CHECK", "the Go plugin fails without addresses", &[])]),
    row("bridge", r#"{"portIsolation":true}"#).newer(),
    row("bridge", r#"{"unknown":1}"#),
    row("macvlan", r#"{"mode":"bridge"}"#),
    row("macvlan", r#"{"mode":"private"}"#),
    row("macvlan", r#"{"mode":"vepa"}"#),
    row("macvlan", r#"{"mode":"passthru"}"#),
    row("macvlan", r#"{"mode":"x"}"#),
    row("macvlan", r#"{"mtu":1400}"#),
    row("macvlan", r#"{"mtu":1501}"#),
    row("macvlan", r#"{"mtu":-1}"#),
    row("macvlan", r#"{"master":"nowhere"}"#),
    row("macvlan", r#"{"mac":"02:00:00:00:00:05"}"#),
    row("macvlan", r#"{"mac":"x"}"#),
    row("macvlan", r#"{"runtimeConfig":{"mac":"02:00:00:00:00:07"}}"#),
    row("macvlan", r#"{"args":{"cni":{"mac":"02:00:00:00:00:08"}}}"#).but(&[
        ("2 pod after ADD", "the Go plugins read it in bridge and tuning only", &[]),
        ("3 host after ADD", "the Go plugin uses a random address", &[]),
        ("4 result", "the Go plugin uses a random address", &[]),
        ("8 host after DEL", "the Go plugin uses a random address", &[]),
    ]),
    row("macvlan", r#"{"ipam":{}}"#),
    row(
        "macvlan",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]}}"#,
    ),
    row(
        "macvlan",
        r#"{"ipam":{"type":"static","addresses":[{"address":"192.0.2.10/24","gateway":"192.0.2.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}"#,
    ),
    row("macvlan", r#"{"dns":{"nameservers":["192.0.2.53"]}}"#),
    row("macvlan", r#"{"linkInContainer":true}"#).newer(),
    row("macvlan", r#"{"bcqueuelen":2000}"#).newer(),
    row("macvlan", r#"{"CNI_ARGS":"IgnoreUnknown=1;MAC=02:00:00:00:00:09"}"#),
    row("ipvlan", r#"{"mode":"l2"}"#),
    row("ipvlan", r#"{"mode":"l3"}"#),
    row("ipvlan", r#"{"mode":"l3s"}"#),
    row("ipvlan", r#"{"mode":"x"}"#),
    row("ipvlan", r#"{"mtu":1400}"#),
    row("ipvlan", r#"{"mtu":1501}"#).but(&[("1 ADD", "the Go plugin creates an interface that loses large packets", &[])]),
    row("ipvlan", r#"{"mtu":-1}"#).but(&[("1 ADD", "the Go plugin ignores a negative value", &[])]),
    row("ipvlan", r#"{"master":"nowhere"}"#),
    row(
        "ipvlan",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]}}"#,
    ),
    row(
        "ipvlan",
        r#"{"ipam":{"type":"static","addresses":[{"address":"192.0.2.10/24","gateway":"192.0.2.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}"#,
    ),
    row("ipvlan", r#"{"dns":{"nameservers":["192.0.2.53"]}}"#),
    row("ipvlan", r#"{"linkInContainer":true}"#).newer(),
    row("vlan", r#"{"vlanId":1}"#),
    row("vlan", r#"{"vlanId":4094}"#),
    row("vlan", r#"{"vlanId":4095}"#),
    row("vlan", r#"{"vlanId":-1}"#),
    row("vlan", r#"{"vlanId":"x"}"#),
    row("vlan", r#"{"mtu":1400}"#),
    row("vlan", r#"{"mtu":1501}"#),
    row("vlan", r#"{"mtu":-1}"#),
    row("vlan", r#"{"master":"nowhere"}"#),
    row("vlan", r#"{"master":""}"#),
    row("vlan", r#"{"ipam":{}}"#).but(&[("1 ADD", "the Go plugin requires addresses", &[])]),
    row(
        "vlan",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]}}"#,
    ),
    row("vlan", r#"{"dns":{"nameservers":["192.0.2.53"]}}"#),
    row("vlan", r#"{"linkInContainer":true}"#).newer(),
    row("ptp", r#"{"ipMasq":true,"ipMasqBackend":"iptables"}"#),
    row("ptp", r#"{"ipMasq":true,"ipMasqBackend":"nftables"}"#).newer().but(EMPTY_NAT_TABLE),
    row("ptp", r#"{"mtu":1400}"#),
    row("ptp", r#"{"mtu":"x"}"#),
    row(
        "ptp",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]}}"#,
    ),
    row(
        "ptp",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]},"ipMasq":true,"ipMasqBackend":"iptables"}"#,
    ),
    row("ptp", r#"{"ipam":{}}"#),
    row(
        "ptp",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}"#,
    ),
    row("ptp", r#"{"dns":{"nameservers":["10.1.0.53"]}}"#),
    row("ptp", r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}"#),
    row("ptp", r#"{"ipam":{"type":"static","addresses":[]}}"#),
    row("loopback", r#"{"unknown":1}"#),
    row("host-device", r#"{"device":"nowhere"}"#),
    row("host-device", r#"{"device":""}"#),
    row("host-device", r#"{"device":"","hwaddr":"02:00:00:00:0d:01"}"#),
    row("host-device", r#"{"device":"","hwaddr":"x"}"#),
    row("host-device", r#"{"device":"","kernelpath":"/nowhere"}"#),
    row("host-device", r#"{"device":"","pciBusID":"0000:00:99.0"}"#),
    row("host-device", r#"{"runtimeConfig":{"deviceID":"0000:00:99.0"}}"#),
    row("host-device", r#"{"ipam":{}}"#),
    row(
        "host-device",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}]}}"#,
    ),
    row(
        "host-device",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}],"routes":[{"dst":"0.0.0.0/0"}]}}"#,
    ),
    row("tuning", r#"{"mac":"02:00:00:00:00:05"}"#),
    row("tuning", r#"{"mac":"x"}"#),
    row("tuning", r#"{"promisc":true}"#),
    row("tuning", r#"{"allmulti":true}"#),
    row("tuning", r#"{"allmulti":false}"#),
    row("tuning", r#"{"mtu":65536000}"#),
    row("tuning", r#"{"sysctl":{"net.core.somaxconn":"500"}}"#),
    row("tuning", r#"{"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}"#).but(&[("5 CHECK", "the Go plugin looks for a parameter named IFNAME", &[])]),
    row("tuning", r#"{"sysctl":{"net/ipv4/conf/eth0/arp_filter":"1"}}"#),
    row("tuning", r#"{"sysctl":{"kernel.hostname":"x"}}"#),
    row("tuning", r#"{"sysctl":{"net.nowhere":"1"}}"#),
    row("tuning", r#"{"sysctl":{"net.ipv4.ip_forward":"x"}}"#),
    row("tuning", r#"{"runtimeConfig":{"mac":"02:00:00:00:00:07"}}"#),
    row("tuning", r#"{"args":{"cni":{"mac":"02:00:00:00:00:08"}}}"#),
    row("tuning", r#"{"args":{"cni":{"sysctl":{"net.core.somaxconn":"600"}}}}"#).but(&[(
        "1 ADD",
        "the Go plugin panics: the map is nil",
        &[],
    )]),
    row("tuning", r#"{"mtu":0}"#),
    row("tuning", r#"{"txQLen":77}"#).newer(),
    row("tuning", r#"{"dataDir":"/run/elsewhere","promisc":true}"#),
    row("tuning", r#"{"args":{"cni":{"mtu":1300,"promisc":true,"allmulti":true}}}"#),
    row("tuning", r#"{"CNI_ARGS":"IgnoreUnknown=1;MAC=02:00:00:00:00:09"}"#),
    row("sbr", r#"{"unknown":1}"#),
    row("sbr", r#"{"table":200}"#).newer(),
    row("bandwidth", r#"{"ingressRate":0,"ingressBurst":0}"#),
    row("bandwidth", r#"{"egressRate":0,"egressBurst":0}"#),
    row("bandwidth", r#"{"ingressRate":1}"#),
    row("bandwidth", r#"{"ingressRate":8000000,"ingressBurst":0}"#),
    row("bandwidth", r#"{"ingressRate":-1}"#),
    row(
        "bandwidth",
        r#"{"runtimeConfig":{"bandwidth":{"ingressRate":9000000,"ingressBurst":900000,"egressRate":90000000,"egressBurst":900000}}}"#,
    ),
    row("bandwidth", r#"{"ingressRate":0,"ingressBurst":0,"egressRate":0,"egressBurst":0}"#),
    row("bandwidth", r#"{"ingressBurst":4294967296}"#),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"sctp"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":8081,"containerPort":81,"protocol":"udp"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"192.0.2.1"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"fd00:2::1"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"0.0.0.0"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"snat":false}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"markMasqBit":5}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"markMasqBit":32}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"externalSetMarkChain":"MARKED"}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"conditionsV4":["-s","192.0.2.0/24"]}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"conditionsV6":["-s","fd00:2::/64"]}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":0,"containerPort":80,"protocol":"tcp"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":0,"protocol":"tcp"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":65536,"containerPort":80,"protocol":"tcp"}]}}"#,
    ),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"x"}]}}"#,
    ),
    row("portmap", r#"{"runtimeConfig":{"portMappings":[]}}"#),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"masqAll":true}"#,
    ).newer(),
    row(
        "portmap",
        r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"backend":"nftables"}"#,
    ).newer(),
    row("static", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}"#),
    row(
        "static",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64"}]}}"#,
    ),
    row("static", r#"{"CNI_ARGS":"IP=10.1.0.9/24;GATEWAY=10.1.0.1","ipam":{"type":"static"}}"#),
    row("static", r#"{"CNI_ARGS":"IP=10.1.0.9/24,fd01::9/64;GATEWAY=fd01::1"}"#),
    row("static", r#"{"CNI_ARGS":"IP=x"}"#),
    row("static", r#"{"CNI_ARGS":"GATEWAY=x"}"#),
    row("static", r#"{"CNI_ARGS":"FOO=x"}"#),
    row("static", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5"}]}}"#),
    row("static", r#"{"ipam":{"type":"static","addresses":[{"address":"x"}]}}"#),
    row("static", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/33"}]}}"#),
    row("static", r#"{"ipam":{"type":"static","addresses":[]}}"#),
    row(
        "static",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]}}"#,
    ),
    row(
        "static",
        r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}],"dns":{"nameservers":["10.1.0.53"],"domain":"d","search":["a","b"],"options":["o"]}}}"#,
    ),
    row("static", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"x"}]}}"#),
    row("static", r#"{"ipam": {"type": "static"}, "runtimeConfig": {"ips": ["10.1.0.7/24"]}}"#),
    row(
        "static",
        r#"{"ipam": {"type": "static", "addresses": [{"address": "10.1.0.5/24"}]}, "runtimeConfig": {"ips": ["10.1.0.7/24"]}}"#,
    ),
    row("static", r#"{"ipam": {"type": "static"}, "args": {"cni": {"ips": ["10.1.0.8/24"]}}}"#),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.50","rangeEnd":"10.1.0.60","gateway":"10.1.0.254"}]]}}"#,
    ),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd01::/64"}]]}}"#,
    ),
    row("host-local", r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/31"}}"#),
    row("host-local", r#"{"ipam":{"type":"host-local","subnet":"x"}}"#),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}"#,
    ),
    row("host-local", r#"{"ipam":{"type":"host-local"}}"#),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24"},"runtimeConfig":{"ips":["10.1.0.77"]}}"#,
    ),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24"},"args":{"cni":{"ips":["10.1.0.78"]}}}"#,
    ),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24"},"runtimeConfig":{"ips":["10.9.0.77"]}}"#,
    ),
    row(
        "host-local",
        r#"{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.0/25"}]]}}"#,
    ),
    row("dummy", r#"{"ipam":{}}"#).newer(),
    row("dummy", r#"{"dns":{"nameservers":["192.0.2.53"]}}"#).newer().but(&[("4 result", "the Go plugin drops it", &[])]),
    row("dummy", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"},{"address":"fd01::5/64"}],"routes":[{"dst":"192.0.2.0/24"}]}}"#).newer().but(&[("2 pod after ADD", "weft gives a route without gateway the scope link", &[])]),
    row("tap", r#"{"mac":"02:00:00:00:00:05"}"#).newer(),
    row("tap", r#"{"mac":"x"}"#).newer().but(&[("7 pod after DEL", "the Go plugin leaves the interface of the failed ADD", &[])]),
    row("tap", r#"{"mtu":1400}"#).newer(),
    row("tap", r#"{"mtu":-1}"#).newer().but(&[("7 pod after DEL", "the Go plugin leaves the interface of the failed ADD", &[])]),
    row("tap", r#"{"multiQueue":true}"#).newer(),
    row("tap", r#"{"owner":1000,"group":1000}"#).newer().but(&[("2 pod after ADD", "flags that the program which opens the device sets again", &[])]),
    row("tap", r#"{"owner":0,"mac":"02:00:00:00:00:05"}"#).newer(),
    row("tap", r#"{"bridge":"nowhere"}"#).newer(),
    row("tap", r#"{"CNI_ARGS":"IgnoreUnknown=1;MAC=02:00:00:00:00:09"}"#).newer(),
    row("tap", r#"{"selinuxContext":"system_u:system_r:container_t:s0"}"#).newer(),
    row("tap", r#"{"ipam":{}}"#).newer(),
    row("tap", r#"{"dns":{"nameservers":["192.0.2.53"]}}"#).newer(),
    row("tap", r#"{"runtimeConfig":{"mac":"02:00:00:00:00:07"}}"#).newer(),
    row("vrf", r#"{"vrfname":""}"#),
    row("vrf", r#"{"vrfname":"blue0123456789012"}"#),
    row("vrf", r#"{"table":77}"#),
    row("vrf", r#"{"table":0}"#),
    row("firewall", r#"{"iptablesAdminChainName":"ADMIN"}"#),
    row("firewall", r#"{"ingressPolicy":"same-bridge"}"#).but(&[("8 host after DEL", "the shared rules have the comment of later versions", &[])]),
    row("firewall", r#"{"ingressPolicy":"open"}"#),
    row("firewall", r#"{"ingressPolicy":"isolated"}"#).newer(),
    row("firewall", r#"{"ingressPolicy":"x"}"#),
    row("firewall", r#"{"backend":"x"}"#).but(&[("1 ADD", "the Go plugin uses another backend without an error", &[])]),
];
