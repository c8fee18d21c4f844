#include "tools/pboxctl/trace_events.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace pboxctl {
namespace {

using Json = nlohmann::json;

// The kinds of events, numbered as in the box's answer; see appliance/admin/README.md.
enum Kind : unsigned { kFirst, kLast, kFull, kSent };

struct Arrival {
  std::optional<uint64_t> first_ns, last_ns;
};

// One round of one chunk.
struct Round {
  std::map<uint32_t, Arrival> ranks;
  std::optional<uint64_t> full_ns, sent_ns;

  bool is_whole() const {
    if (!full_ns || !sent_ns || ranks.empty()) return false;
    for (const auto& [rank, arrival] : ranks) {
      if (!arrival.first_ns) return false;
    }
    return true;
  }
  uint64_t begun_ns() const {
    uint64_t begun_ns = *full_ns;
    for (const auto& [rank, arrival] : ranks) begun_ns = std::min(begun_ns, *arrival.first_ns);
    return begun_ns;
  }
};

using RoundKey = std::pair<size_t, uint32_t>;  // index of the chunk, number of the round

std::map<RoundKey, Round> rounds_of(const Json& trace) {
  std::map<RoundKey, Round> rounds;
  for (const Json& event : trace.at("events")) {
    const auto at_ns = event.at(0).get<uint64_t>();
    Round& round = rounds[{event.at(2).get<size_t>(), event.at(3).get<uint32_t>()}];
    switch (event.at(1).get<unsigned>()) {
      case kFirst: round.ranks[event.at(4).get<uint32_t>()].first_ns = at_ns; break;
      case kLast: round.ranks[event.at(4).get<uint32_t>()].last_ns = at_ns; break;
      case kFull: round.full_ns = at_ns; break;
      case kSent: round.sent_ns = at_ns; break;
    }
  }
  return rounds;
}

// Adds a span as a pair of asynchronous events, so that spans may overlap. Spans of one category
// and id nest.
void add_span(Json& events, Json span, uint64_t from_ns, uint64_t to_ns) {
  for (const bool begins : {true, false}) {
    span["ph"] = begins ? "b" : "e";
    span["ts"] = static_cast<double>(begins ? from_ns : to_ns) / 1e3;
    events.push_back(span);
    span.erase("args");
  }
}

void add_round(Json& events, const Json& chunk, uint32_t number, const Round& round, size_t id) {
  const uint64_t begun_ns = round.begun_ns();
  const auto pipeline = chunk.at("pipeline").get<uint32_t>();
  Json span = {{"pid", pipeline},
               {"tid", 0},
               {"cat", "chunk"},
               {"id", id},
               {"name", chunk.at("tensor")},
               {"args",
                {{"part", chunk.at("part")},
                 {"chunk", chunk.at("chunk")},
                 {"round", number},
                 {"tensor", chunk.at("tensor")},
                 {"priority", chunk.at("priority")}}}};
  add_span(events, span, begun_ns, *round.sent_ns);
  span["name"] = "aggregate";
  add_span(events, span, begun_ns, *round.full_ns);
  span["name"] = "send";
  add_span(events, span, *round.full_ns, *round.sent_ns);
  for (const auto& [rank, arrival] : round.ranks) {
    span["cat"] = "arrive";
    span["id"] = std::to_string(id) + "." + std::to_string(rank);
    span["name"] = "rank " + std::to_string(rank);
    // A rank that was excluded meanwhile has no last fragment.
    add_span(events, span, *arrival.first_ns, arrival.last_ns.value_or(*round.full_ns));
  }
}

}  // namespace

TracePage make_trace_page(const Json& trace) {
  TracePage made;
  Json events = Json::array();
  std::set<uint32_t> pipelines;
  for (const auto& [key, round] : rounds_of(trace)) {
    if (!round.is_whole()) {
      ++made.unfinished;
      continue;
    }
    const Json& chunk = trace.at("chunks").at(key.first);
    pipelines.insert(chunk.at("pipeline").get<uint32_t>());
    add_round(events, chunk, key.second, round, made.rounds++);
    TracedRounds& rounds = made.by_priority[chunk.at("priority").get<int64_t>()];
    rounds.aggregate_s.push_back(static_cast<double>(*round.full_ns - round.begun_ns()) / 1e9);
    rounds.send_s.push_back(static_cast<double>(*round.sent_ns - *round.full_ns) / 1e9);
  }
  for (const uint32_t pipeline : pipelines) {
    events.push_back({{"ph", "M"},
                      {"pid", pipeline},
                      {"name", "process_name"},
                      {"args", {{"name", "pipeline " + std::to_string(pipeline)}}}});
  }
  made.page = {{"displayTimeUnit", "ms"},
               {"otherData",
                {{"job", trace.at("job")},
                 {"world_size", trace.at("world_size")},
                 {"recorded_seconds", trace.at("recorded_seconds")},
                 {"lost_events", trace.at("lost_events")},
                 {"rounds", made.rounds},
                 {"unfinished_rounds", made.unfinished}}},
               {"traceEvents", std::move(events)}};
  return made;
}

}  // namespace pboxctl
