// The times of events on the ranks of a rack, as a trace for Perfetto (ui.perfetto.dev) or
// chrome://tracing. Each rank is one process of the trace. One track shows its computing and
// waiting. Other tracks show its tensors and chunks in flight, which may overlap.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pbox::perf {

enum class SpanKind : uint8_t {
  kForward,   // computing
  kBackward,  // computing
  kWait,      // forward waits for a layer's parameters
  kExchange,  // one tensor, from the call that pushes it until its result is in place
  // The phases of one chunk of a tensor, in this order:
  kQueue,      // waits for the window, behind more urgent chunks
  kPush,       // the worker sends the chunk's packets
  kAggregate,  // in flight, or at the box, which sums and waits for the other ranks
  kResult,     // the result's packets arrive
};

struct Span {
  SpanKind kind;
  uint32_t index;    // index of a layer, or of a tensor for kExchange and chunk events
  uint64_t from_ns;  // monotonic_ns(), which all processes of a machine share
  uint64_t to_ns;
  uint32_t chunk = 0;  // chunk of the job
};

// Convert spans to and from the JSON that a rank sends to the process that started it.
nlohmann::json to_json(const std::vector<Span>& spans);
std::vector<Span> spans_from_json(const nlohmann::json& spans);

// Appends the events of one process of the trace, named after the model's layers and tensors.
void append_trace_events(nlohmann::json& events, uint32_t process, const std::string& process_name,
                         const std::vector<Span>& spans,
                         const std::vector<std::string>& layer_names,
                         const std::vector<std::string>& tensor_names);

}  // namespace pbox::perf
