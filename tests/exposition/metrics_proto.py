"""The messages of io/prometheus/client/metrics.proto (github.com/prometheus/client_model) in the official runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The runtime has no types.
from google.protobuf import (  # type: ignore[import-untyped]  # it has no types
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from google.protobuf.internal.decoder import _DecodeVarint32  # type: ignore[import-untyped]  # it has no types

_TYPES = {"double": 1, "int64": 3, "uint64": 4, "string": 9, "message": 11, "uint32": 13, "sint32": 17, "sint64": 18}
_STAMP = "message .google.protobuf.Timestamp"
# Name, type and number of each field; `*` is repeated.
_MESSAGES = {
    "LabelPair": "name string 1, value string 2",
    "Gauge": "value double 1",
    "Counter": f"value double 1, created_timestamp {_STAMP} 3",
    "Bucket": "cumulative_count uint64 1, upper_bound double 2",
    "BucketSpan": "offset sint32 1, length uint32 2",
    "Histogram": "sample_count uint64 1, sample_sum double 2, *bucket message .c.Bucket 3, schema sint32 5, "
    "zero_threshold double 6, zero_count uint64 7, *positive_span message .c.BucketSpan 12, *positive_delta sint64 13, "
    f"created_timestamp {_STAMP} 15",
    "Metric": "*label message .c.LabelPair 1, gauge message .c.Gauge 2, counter message .c.Counter 3, "
    "histogram message .c.Histogram 7",
    "MetricFamily": "name string 1, help string 2, type int64 3, *metric message .c.Metric 4, unit string 5",
}


def _family() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="c.proto", package="c", syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for text in fields.split(", "):
            name, kind, *reference, number = text.split()
            label = 3 if name.startswith("*") else 1
            known = {"type_name": reference[0]} if reference else {}
            facts = {"number": int(number), "type": _TYPES[kind], "label": label, **known}
            field = described.field.add(name=name.lstrip("*"), **facts)
            if name.lstrip("*") == "positive_delta":
                field.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("c.MetricFamily"))


_FAMILY = _family()


def families(body: bytes) -> Iterator[Any]:
    """Yield the messages of a body. A field that the schema does not have is an error."""
    position = 0
    while position < len(body):
        length, position = _DecodeVarint32(body, position)
        assert position + length <= len(body)
        family = _FAMILY.FromString(body[position : position + length])
        # Unknown fields would be written back after the known ones, and a wrong wire type is an unknown field.
        assert family.ByteSize() == length
        known = _FAMILY()
        known.CopyFrom(family)
        known.DiscardUnknownFields()
        assert known.ByteSize() == length, f"{family.name} has unknown fields"
        position += length
        yield family
