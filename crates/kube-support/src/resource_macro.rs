//! Macro `resource!`: implements `kube::Resource` for weft's types.

/// Implements `kube::Resource` for a type with a field `metadata`: scope, kind, plural, group and version (`v1` by
/// default), or the same as another type.
#[macro_export]
macro_rules! resource {
    ($object:ty, $scope:ty, $kind:literal, $plural:literal, $group:literal) => {
        $crate::resource!($object, $scope, $kind, $plural, $group, "v1");
    };
    ($object:ty, $scope:ty, $kind:literal, $plural:literal, $group:literal, $version:literal) => {
        $crate::resource!(@impl $object, $scope, $kind.into(), $plural.into(), $group.into(), $version.into());
    };
    ($object:ty as $other:ty) => {
        $crate::resource!(
            @impl $object,
            <$other as ::kube::Resource>::Scope,
            <$other as ::kube::Resource>::kind(&()),
            <$other as ::kube::Resource>::plural(&()),
            <$other as ::kube::Resource>::group(&()),
            <$other as ::kube::Resource>::version(&())
        );
    };
    (@impl $object:ty, $scope:ty, $kind:expr, $plural:expr, $group:expr, $version:expr) => {
        impl ::kube::Resource for $object {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> ::std::borrow::Cow<'_, str> {
                $kind
            }

            fn group((): &()) -> ::std::borrow::Cow<'_, str> {
                $group
            }

            fn version((): &()) -> ::std::borrow::Cow<'_, str> {
                $version
            }

            fn plural((): &()) -> ::std::borrow::Cow<'_, str> {
                $plural
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
