#include "perf/rack/spans.h"

namespace pbox::perf {
namespace {

constexpr double kMicrosecondsPerNanosecond = 1e-3;
constexpr uint32_t kComputeTrack = 0;

const char* name_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::kForward: return "forward";
    case SpanKind::kBackward: return "backward";
    case SpanKind::kWait: return "wait";
    case SpanKind::kExchange: return "exchange";
    case SpanKind::kQueue: return "queue";
    case SpanKind::kPush: return "push";
    case SpanKind::kAggregate: return "aggregate";
    case SpanKind::kResult: return "result";
  }
  return "";
}

nlohmann::json event(const char* phase, const Span& span, uint64_t at_ns, uint32_t process,
                     const std::string& name) {
  return {{"ph", phase},          {"pid", process},
          {"tid", kComputeTrack}, {"cat", name_of(span.kind)},
          {"name", name},         {"ts", static_cast<double>(at_ns) * kMicrosecondsPerNanosecond}};
}

}  // namespace

nlohmann::json to_json(const std::vector<Span>& spans) {
  nlohmann::json list = nlohmann::json::array();
  for (const Span& span : spans) {
    list.push_back({static_cast<int>(span.kind), span.index, span.from_ns, span.to_ns, span.chunk});
  }
  return list;
}

std::vector<Span> spans_from_json(const nlohmann::json& spans) {
  std::vector<Span> list;
  for (const auto& span : spans) {
    list.push_back({static_cast<SpanKind>(span.at(0).get<int>()), span.at(1), span.at(2),
                    span.at(3), span.at(4)});
  }
  return list;
}

void append_trace_events(nlohmann::json& events, uint32_t process, const std::string& process_name,
                         const std::vector<Span>& spans,
                         const std::vector<std::string>& layer_names,
                         const std::vector<std::string>& tensor_names) {
  events.push_back({{"ph", "M"},
                    {"pid", process},
                    {"name", "process_name"},
                    {"args", {{"name", process_name}}}});
  for (const Span& span : spans) {
    if (span.kind >= SpanKind::kExchange) {
      const bool is_tensor = span.kind == SpanKind::kExchange;
      const std::string& tensor = tensor_names.at(span.index);
      const std::string name =
          is_tensor ? tensor
                    : tensor + " chunk " + std::to_string(span.chunk) + " " + name_of(span.kind);
      for (const bool begins : {true, false}) {
        nlohmann::json one =
            event(begins ? "b" : "e", span, begins ? span.from_ns : span.to_ns, process, name);
        one["cat"] = is_tensor ? "tensor" : "chunk";
        one["id"] = is_tensor ? span.index : span.chunk;
        events.push_back(one);
      }
      continue;
    }
    const std::string name = std::string(name_of(span.kind)) + " " + layer_names.at(span.index);
    nlohmann::json one = event("X", span, span.from_ns, process, name);
    one["dur"] = static_cast<double>(span.to_ns - span.from_ns) * kMicrosecondsPerNanosecond;
    events.push_back(one);
  }
}

}  // namespace pbox::perf
