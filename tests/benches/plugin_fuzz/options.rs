//! Options from which the fuzz makes configurations: values as JSON, valid and nearly valid ones.

/// Option of a plugin: name, valid values and nearly valid ones as JSON.
pub(crate) type FuzzOption = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Values as JSON: valid ones, nearly valid ones.
pub(crate) type Values = [&'static [&'static str]; 2];

/// Plugin that creates or moves an interface.
pub(crate) struct InterfacePlugin {
    /// Name.
    pub(crate) name: &'static str,
    /// Options that it has in every case.
    pub(crate) required: &'static str,
    /// Options that it has in some cases.
    pub(crate) options: &'static [FuzzOption],
}

/// Interface plugins. A plugin that the Go plugins lack is never chosen.
pub(crate) const INTERFACES: &[InterfacePlugin] = &[
    InterfacePlugin {
        name: "bridge",
        required: r#"{"bridge":"br0"}"#,
        options: &[
            ("bridge", &["\"\"", "\"br1\"", "null"], &["\"a-name-too-long-x\""]),
            ("isGateway", &["true", "true", "false", "null"], &[]),
            ("isDefaultGateway", &["true", "false"], &[]),
            ("forceAddress", &["true", "false"], &[]),
            ("ipMasq", &["true", "true", "false"], &[]),
            ("ipMasqBackend", &["\"iptables\"", "\"nftables\"", "\"\""], &["\"x\""]),
            ("mtu", &["0", "1400", "9000", "1200"], &["70", "-1", "\"x\"", "1.0", "65536"]),
            ("hairpinMode", &["true"], &[]),
            ("promiscMode", &["true"], &[]),
            ("enabledad", &["true"], &[]),
            ("vlan", &["0", "100"], &["4095", "-1"]),
            (
                "vlanTrunk",
                &[r#"[{"id":5}]"#, r#"[{"minID":1,"maxID":4}]"#, "[]"],
                &[r#"[{"minID":4,"maxID":1}]"#],
            ),
            ("preserveDefaultVlan", &["true", "false"], &[]),
            ("macspoofchk", &["true"], &[]),
            ("disableContainerInterface", &["true"], &[]),
            ("portIsolation", &["true"], &[]),
        ],
    },
    InterfacePlugin {
        name: "ptp",
        required: "{}",
        options: &[
            ("ipMasq", &["true", "true", "false"], &[]),
            ("ipMasqBackend", &["\"iptables\"", "\"nftables\""], &["\"x\""]),
            ("mtu", &["0", "1400", "1280", "1200"], &["-1"]),
            ("dns", &[r#"{"nameservers":["10.1.0.1"],"domain":"x"}"#, "{}"], &[]),
        ],
    },
    InterfacePlugin {
        name: "macvlan",
        required: r#"{"master":"up0"}"#,
        options: &[
            ("master", &["\"\"", "\"br0\""], &["\"nowhere\""]),
            ("mode", &["\"bridge\"", "\"private\"", "\"vepa\"", "\"passthru\"", "\"\""], &["\"bridged\""]),
            ("mtu", &["0", "1400", "1500", "1200"], &["1501"]),
            ("linkInContainer", &["false", "true"], &[]),
            ("mac", &["\"02:00:00:00:00:09\""], &["\"x\""]),
            ("bcqueuelen", &["0", "500"], &["-1"]),
        ],
    },
    InterfacePlugin {
        name: "host-device",
        required: r#"{"device":"dev0"}"#,
        options: &[
            ("device", &["null"], &["\"nowhere\"", "\"lo\""]),
            ("hwaddr", &["\"02:00:00:00:0d:01\""], &["\"02:00:00:00:0d:99\"", "\"x\""]),
            ("kernelpath", &["\"/sys/devices/virtual/net/dev0\""], &["\"/sys/nowhere\""]),
            ("pciBusID", &[], &["\"0000:ff:1f.7\""]),
        ],
    },
    InterfacePlugin { name: "loopback", required: "{}", options: &[("dns", &[r#"{"domain":"x"}"#], &[])] },
    InterfacePlugin {
        name: "tap",
        required: "{}",
        options: &[
            ("mac", &["\"02:00:00:00:00:09\""], &["\"x\""]),
            ("mtu", &["0", "1400", "1200"], &["-1"]),
            ("owner", &["0", "1000"], &[]),
            ("group", &["0", "1000"], &[]),
            ("multiQueue", &["true", "false"], &[]),
            ("selinuxContext", &["\"\""], &[]),
            ("bridge", &[], &["\"nowhere\""]),
        ],
    },
];

/// Requests for an interface, which some plugins take.
pub(crate) const REQUESTS: &[FuzzOption] = &[
    ("args", &[r#"{"cni":{"mac":"02:00:00:00:00:07"}}"#, "{}"], &[r#"{"cni":{"ips":["10.1.0.9/24"]}}"#]),
    (
        "runtimeConfig",
        &[
            r#"{"mac":"02:00:00:00:00:08"}"#,
            r#"{"mac":""}"#,
            r#"{"ips":["10.1.0.12/24"]}"#,
            r#"{"ips":["10.1.0.12/24","fd01::12/64"]}"#,
            r#"{"ips":[]}"#,
            r#"{"ipRanges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.50"}]]}"#,
            r#"{"ipRanges":[[{"subnet":"10.1.0.0/25"}],[{"subnet":"fd01::/64"}]]}"#,
            r#"{"dns":{"servers":["10.1.0.2"],"searches":["y"]}}"#,
            "{}",
        ],
        &[
            r#"{"mac":"x"}"#,
            r#"{"ips":["10.1.0.12"]}"#,
            r#"{"ips":["10.9.0.12/24"]}"#,
            r#"{"deviceID":"0000:ff:1f.7"}"#,
        ],
    ),
];

/// Values of `CNI_ARGS`.
pub(crate) const CNI_ARGS: &[&str] = &[
    "IP=10.1.0.13",
    "IgnoreUnknown=1;IP=10.1.0.13;K8S_POD_NAME=p",
    "MAC=02:00:00:00:00:0b",
    "IgnoreUnknown=true;X=y",
    "X=y",
    "IP=x",
    "IP",
];

/// Ranges of host-local, by family.
pub(crate) const RANGES: [Values; 2] = [
    [
        &[
            r#"{"subnet":"10.1.0.0/24"}"#,
            r#"{"subnet":"10.1.0.0/24"}"#,
            r#"{"subnet":"10.1.0.0/24","gateway":"10.1.0.9"}"#,
            r#"{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.7","rangeEnd":"10.1.0.7"}"#,
            r#"{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.1"}"#,
            r#"{"subnet":"10.2.0.0/24"}"#,
            r#"{"subnet":"10.1.0.0/30"}"#,
            r#"{"subnet":"::ffff:10.1.0.0/120"}"#,
        ],
        &[
            r#"{"subnet":"10.1.0.0/24","gateway":"10.3.0.9"}"#,
            r#"{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.7"}"#,
            r#"{"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}"#,
            r#"{"subnet":"10.1.0.5/24"}"#,
            r#"{"subnet":"10.1.0.0/31"}"#,
            r#"{"subnet":"10.1.0.0/32"}"#,
            r#"{"subnet":"x"}"#,
            "{}",
        ],
    ],
    [
        &[
            r#"{"subnet":"fd01::/64"}"#,
            r#"{"subnet":"fd01::/64"}"#,
            r#"{"subnet":"fd01::/64","gateway":"fd01::5"}"#,
            r#"{"subnet":"fd01::/64","rangeStart":"fd01::10","rangeEnd":"fd01::20"}"#,
            r#"{"subnet":"FD01:0::/112","gateway":"fe80::1"}"#,
            r#"{"subnet":"fd01::/126"}"#,
        ],
        &[
            r#"{"subnet":"fd01::1/64"}"#,
            r#"{"subnet":"fd01::/127"}"#,
            r#"{"subnet":"fd01::/64","gateway":"10.1.0.1"}"#,
        ],
    ],
];

/// Addresses of static, by family.
pub(crate) const ADDRESSES: [Values; 2] = [
    [
        &[
            r#"{"address":"10.1.0.5/24"}"#,
            r#"{"address":"10.1.0.5/24","gateway":"10.1.0.1"}"#,
            r#"{"address":"10.1.0.5/24","gateway":"10.1.0.1"}"#,
            r#"{"address":"10.1.0.6/24"}"#,
            r#"{"address":"10.1.0.5/32"}"#,
            r#"{"address":"10.1.0.5/32","gateway":"10.1.0.1"}"#,
            r#"{"address":"10.2.0.5/16","gateway":"10.2.0.1"}"#,
        ],
        &[
            r#"{"address":"10.1.0.5"}"#,
            r#"{"address":"10.1.0.5/33"}"#,
            r#"{"address":"10.1.0.0/24"}"#,
            r#"{"address":"10.1.0.5/24","gateway":"x"}"#,
            r#"{"address":"10.1.0.5/24","gateway":"fd01::1"}"#,
            r#"{"address":"10.1.0.5/24","gateway":"10.1.0.5"}"#,
        ],
    ],
    [
        &[
            r#"{"address":"fd01::5/64"}"#,
            r#"{"address":"fd01::5/64","gateway":"fd01::1"}"#,
            r#"{"address":"fd01::5/64","gateway":"fd01::1"}"#,
            r#"{"address":"fd01::5/64","gateway":"fe80::1"}"#,
            r#"{"address":"fd01::5/128"}"#,
            r#"{"address":"FD01:0:0::5/64"}"#,
        ],
        &[r#"{"address":"fd01::5"}"#, r#"{"address":"fe80::5/64"}"#, r#"{"address":"ff02::5/64"}"#],
    ],
];

/// Routes of an IPAM section, by family.
pub(crate) const ROUTES: [Values; 2] = [
    [
        &[
            r#"{"dst":"0.0.0.0/0"}"#,
            r#"{"dst":"0.0.0.0/0"}"#,
            r#"{"dst":"0.0.0.0/0","gw":"10.1.0.3"}"#,
            r#"{"dst":"10.9.0.0/16"}"#,
            r#"{"dst":"10.9.0.0/16","gw":"10.1.0.3"}"#,
            r#"{"dst":"10.10.0.0/16","mtu":1300,"advmss":1200}"#,
            r#"{"dst":"10.11.0.0/16","priority":500}"#,
            r#"{"dst":"10.12.0.0/16","table":120}"#,
            r#"{"dst":"10.13.0.0/16","scope":253}"#,
            r#"{"dst":"0.0.0.0/0","priority":7}"#,
        ],
        &[
            r#"{"dst":"10.9.1.1/16","gw":"10.1.0.3"}"#,
            r#"{"dst":"10.9.0.0/16","gw":"10.77.0.3"}"#,
            r#"{"dst":"10.9.0.0/16","gw":"0.0.0.0"}"#,
            r#"{"dst":"10.1.0.0/24"}"#,
            r#"{"dst":"10.9.0.0"}"#,
            r#"{"dst":"x"}"#,
            "{}",
        ],
    ],
    [
        &[
            r#"{"dst":"::/0"}"#,
            r#"{"dst":"::/0"}"#,
            r#"{"dst":"::/0","gw":"fd01::9"}"#,
            r#"{"dst":"fd09::/64","gw":"fd01::9"}"#,
            r#"{"dst":"fd09::/64"}"#,
            r#"{"dst":"fd10::/64","mtu":1300}"#,
            r#"{"dst":"fd11::/64","priority":500}"#,
            r#"{"dst":"fd12::/64","table":120}"#,
        ],
        &[
            r#"{"dst":"fd09::1/64"}"#,
            r#"{"dst":"fd09::/64","gw":"10.1.0.3"}"#,
            r#"{"dst":"fd09::/64","gw":"::"}"#,
            r#"{"dst":"fd01::/64"}"#,
        ],
    ],
];

/// Further options of an IPAM section.
pub(crate) const IPAM_OPTIONS: &[FuzzOption] = &[
    ("dataDir", &["\"/run/other\"", "\"\""], &[]),
    ("resolvConf", &["\"/etc/hostname\""], &["\"/nowhere\""]),
    ("dns", &[r#"{"nameservers":["10.1.0.1"],"search":["x"]}"#], &[]),
    ("subnet", &["\"10.1.0.0/24\"", "\"10.4.0.0/24\""], &[]),
    ("gateway", &["\"10.1.0.9\"", "\"\""], &[]),
    ("routes", &["null", "[]"], &[]),
    ("ranges", &["null", "[]"], &["[[]]"]),
    ("addresses", &["null", "[]"], &[]),
];

/// Chained plugins: valid and nearly valid ones.
pub(crate) const CHAINED: Values = [
    &[
        r#"{"type":"tuning","mtu":1300}"#,
        r#"{"type":"tuning","mtu":1200}"#,
        r#"{"type":"tuning","mac":"02:00:00:00:00:0a","promisc":true}"#,
        r#"{"type":"tuning","runtimeConfig":{"mac":"02:00:00:00:00:0a"}}"#,
        r#"{"type":"tuning","args":{"cni":{"sysctl":{"net.ipv4.conf.all.log_martians":"1"}}},"sysctl":{}}"#,
        r#"{"type":"tuning","sysctl":{"net.ipv4.conf.eth0.log_martians":"1","net.core.somaxconn":"200"}}"#,
        r#"{"type":"tuning","sysctl":{"net.ipv6.conf.IFNAME.accept_ra":"0","net/ipv4/conf/IFNAME/arp_notify":"1"}}"#,
        r#"{"type":"tuning","sysctl":{"net.ipv4.ip_local_port_range":"1024 65000"}}"#,
        r#"{"type":"tuning","allmulti":true,"txQLen":500}"#,
        r#"{"type":"tuning","txQLen":0}"#,
        r#"{"type":"tuning","dataDir":"/run/backups","promisc":false,"mtu":1400}"#,
        r#"{"type":"sbr"}"#,
        r#"{"type":"sbr"}"#,
        r#"{"type":"sbr","table":123}"#,
        r#"{"type":"portmap","snat":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","backend":"iptables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","backend":"nftables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"sctp"}]}}"#,
        r#"{"type":"portmap","backend":"iptables","snat":true,"markMasqBit":5,"runtimeConfig":{"portMappings":[{"hostPort":53,"containerPort":53,"protocol":"udp"},{"hostPort":53,"containerPort":53,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","backend":"iptables","externalSetMarkChain":"CNI-MARK","runtimeConfig":{"portMappings":[{"hostPort":81,"containerPort":80,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","backend":"iptables","conditionsV4":["!","-d","10.9.0.0/16"],"conditionsV6":["-s","fd01::/64"],"runtimeConfig":{"portMappings":[{"hostPort":82,"containerPort":80,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp","hostIP":"10.7.0.1"}]}}"#,
        r#"{"type":"portmap","backend":"iptables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"fd07::1"},{"hostPort":8081,"containerPort":80,"protocol":"tcp","hostIP":"::"}]}}"#,
        r#"{"type":"portmap","snat":false,"runtimeConfig":{"portMappings":[]}}"#,
        r#"{"type":"portmap"}"#,
        r#"{"type":"portmap","runtimeConfig":{"portMappings":[{"HostPort":84,"ContainerPort":80,"Protocol":"TCP","HostIP":""}]}}"#,
        r#"{"type":"bandwidth","ingressRate":800000,"ingressBurst":80000}"#,
        r#"{"type":"bandwidth","egressRate":800000,"egressBurst":80000}"#,
        r#"{"type":"bandwidth","runtimeConfig":{"bandwidth":{"ingressRate":800000,"ingressBurst":80000,"egressRate":1600000,"egressBurst":1600}}}"#,
        r#"{"type":"bandwidth","ingressRate":800000,"ingressBurst":80000,"runtimeConfig":{"bandwidth":{"ingressRate":900000,"ingressBurst":90000}}}"#,
        r#"{"type":"bandwidth","runtimeConfig":{"bandwidth":{}}}"#,
        r#"{"type":"firewall","backend":"iptables"}"#,
        r#"{"type":"firewall","backend":"iptables","ingressPolicy":"same-bridge"}"#,
        r#"{"type":"firewall","backend":"iptables","ingressPolicy":"open"}"#,
        r#"{"type":"firewall","backend":"iptables","iptablesAdminChainName":"ADMIN"}"#,
    ],
    &[
        r#"{"type":"tuning","mac":"x"}"#,
        r#"{"type":"tuning","sysctl":{"net.ipv4.conf.nowhere.log_martians":"1"}}"#,
        r#"{"type":"tuning","sysctl":{"kernel.hostname":"x"}}"#,
        r#"{"type":"portmap","markMasqBit":32,"runtimeConfig":{"portMappings":[{"hostPort":83,"containerPort":80,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":0,"containerPort":80,"protocol":"tcp"}]}}"#,
        r#"{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":85,"containerPort":80,"protocol":"icmp"}]}}"#,
        r#"{"type":"bandwidth","ingressRate":800000}"#,
        r#"{"type":"bandwidth","ingressBurst":800000}"#,
        r#"{"type":"bandwidth","ingressRate":8,"ingressBurst":2147483647}"#,
        r#"{"type":"bandwidth"}"#,
        r#"{"type":"firewall","backend":"iptables","ingressPolicy":"isolated"}"#,
        r#"{"type":"firewall","backend":"iptables","ingressPolicy":"x"}"#,
        r#"{"type":"firewall","backend":"firewalld"}"#,
        r#"{"type":"firewall","backend":"x"}"#,
    ],
];

/// Changes between two CHECKs, as a command for the shell in the pod, or on the host if it begins with `host: `.
pub(crate) const CHANGES: &[&str] = &[
    "ip link set eth0 down",
    "ip link set eth0 mtu 1350",
    "ip link set eth0 address 02:00:00:00:00:99",
    "ip address flush dev eth0",
    "ip address add 10.77.0.1/24 dev eth0",
    "ip route flush table main",
    "ip route del default; ip -6 route del default",
    "ip route add 10.88.0.0/16 dev eth0",
    "ip rule flush",
    "ip link del eth0",
    "host: ip address flush dev br0",
    "host: ip link set br0 down",
    "host: ip link del br0",
    "host: ip link set up0 down",
    "host: iptables -t nat -F; iptables -F; ip6tables -t nat -F; ip6tables -F",
    "host: nft flush ruleset",
    "host: rm -rf /var/lib/cni /run/cni /run/other /run/backups",
    "host: rm -f /var/lib/cni/networks/net/1*",
    "host: for link in $(ls /sys/class/net); do tc qdisc del dev $link root; done 2>/dev/null",
];
