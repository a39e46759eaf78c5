//! The macro `resource!`: how the API server names a type of ours.

/// Implements `kube::Resource` for a type: its scope, kind, plural, group and version (`v1` by default).
#[macro_export]
macro_rules! resource {
    ($object:ty, $scope:ty, $kind:literal, $plural:literal, $group:literal) => {
        $crate::resource!($object, $scope, $kind, $plural, $group, "v1");
    };
    ($object:ty, $scope:ty, $kind:literal, $plural:literal, $group:literal, $version:literal) => {
        impl ::kube::Resource for $object {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> ::std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> ::std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
