// The possible verdicts on a packet that reaches a pipeline, unless it is a valid PULL. Exactly one
// of these counters counts it.
#pragma once

#include "pipeline/observe/counters.h"

namespace pbox::test {

inline constexpr pipeline::Counter kPacketVerdicts[] = {
    pipeline::Counter::kAggregated,   pipeline::Counter::kDuplicate,
    pipeline::Counter::kStale,        pipeline::Counter::kDropped,
    pipeline::Counter::kRejectShort,  pipeline::Counter::kRejectVersion,
    pipeline::Counter::kRejectType,   pipeline::Counter::kRejectReserved,
    pipeline::Counter::kRejectLength, pipeline::Counter::kRejectTag,
    pipeline::Counter::kRejectQueue,  pipeline::Counter::kRejectSession,
    pipeline::Counter::kRejectEpoch,  pipeline::Counter::kRejectGeneration,
    pipeline::Counter::kRejectChunk,  pipeline::Counter::kRejectFragment,
    pipeline::Counter::kRejectDtype,  pipeline::Counter::kRejectRound,
    pipeline::Counter::kRejectShape};

}  // namespace pbox::test
