// The times of events on the ranks of a rack, as a trace that Perfetto (ui.perfetto.dev)
// and chrome://tracing display: one process per rank, its computing and waiting on one track, its
// tensors under way and their chunks on others, which may overlap.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pbox::perf {

enum class SpanKind : uint8_t {
  kForward,   // computing
  kBackward,  // computing
  kWait,      // forward stands still: a layer's parameters are not there
  kExchange,  // a tensor, from the call that pushes it until its result is in place
  // A chunk of it, one after the other:
  kQueue,      // waits for the window, behind what is more urgent
  kPush,       // its packets leave
  kAggregate,  // with the box, until all ranks' are in and the result has come through the network
  kResult,     // the result's packets arrive
};

struct Span {
  SpanKind kind;
  uint32_t index;    // index of a layer, or of a tensor for kExchange and chunk events
  uint64_t from_ns;  // monotonic_ns(), which all processes of a machine share
  uint64_t to_ns;
  uint32_t chunk = 0;  // chunk of the job
};

// As a rank sends them to who started it, and back.
nlohmann::json to_json(const std::vector<Span>& spans);
std::vector<Span> spans_from_json(const nlohmann::json& spans);

// The events of one process of the trace. Names are those of the model's layers and tensors.
void append_trace_events(nlohmann::json& events, uint32_t process, const std::string& process_name,
                         const std::vector<Span>& spans,
                         const std::vector<std::string>& layer_names,
                         const std::vector<std::string>& tensor_names);

}  // namespace pbox::perf
