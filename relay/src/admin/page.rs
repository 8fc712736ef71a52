//! A page of metrics, written one family after the other.

use std::fmt;

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder,
        NoLabelSet,
    },
    metrics::MetricType,
    registry::Unit,
};

/// The page.
pub(super) struct Page<'a>(DescriptorEncoder<'a>);

impl<'a> Page<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// A counter for each set of labels; `_total` is added to the name.
    pub(super) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, unit, MetricType::Counter)?;
        for (labels, value) in samples {
            count(&mut family.encode_family(&labels)?, &value)?;
        }
        Ok(())
    }

    /// A gauge for each set of labels.
    pub(super) fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A counter without labels.
    pub(super) fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        count(
            &mut self.family(name, help, unit, MetricType::Counter)?,
            &value,
        )
    }

    /// A gauge without labels.
    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    /// What does not change; `_info` is added to the name.
    pub(super) fn info(
        &mut self,
        name: &str,
        help: &str,
        labels: &impl EncodeLabelSet,
    ) -> fmt::Result {
        self.family(name, help, None, MetricType::Info)?
            .encode_info(labels)
    }

    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }
}

fn count(sample: &mut MetricEncoder<'_>, value: &impl EncodeCounterValue) -> fmt::Result {
    sample.encode_counter::<NoLabelSet, _, u64>(value, None)
}
