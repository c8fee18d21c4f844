#include "tools/pboxctl/trace_events.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace pboxctl {
namespace {

using Json = nlohmann::json;

// The kinds of events, numbered as in pipeline/observe/round_trace.h.
enum Kind : unsigned { kFirst, kLast, kFull, kSent, kParked, kReleased, kReplied };

using Time = std::optional<uint64_t>;  // in nanoseconds since the trace began

// The times of one rank in a round, as far as the trace has them.
struct RankTimes {
  Time first_ns, last_ns, parked_ns, released_ns, replied_ns;
};

// One round of one chunk.
struct Round {
  std::map<uint32_t, RankTimes> ranks;
  Time full_ns, sent_ns;

  // Returns whether the trace has all of the round. Only for a round that the ranks share.
  bool is_whole() const {
    for (const auto& [rank, times] : ranks) {
      if (times.last_ns && !times.first_ns) return false;
    }
    return full_ns && sent_ns && begun_ns();
  }
  // Returns when the first known push began; not later than `full_ns`.
  Time begun_ns() const {
    Time begun_ns;
    for (const auto& [rank, times] : ranks) {
      if (times.first_ns && (!begun_ns || *times.first_ns < *begun_ns)) begun_ns = times.first_ns;
    }
    return begun_ns && full_ns ? std::min(begun_ns, full_ns) : begun_ns;
  }
};

double seconds(uint64_t from_ns, uint64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e9;
}

using RoundKey = std::pair<size_t, uint32_t>;  // index of the chunk, number of the round

std::map<RoundKey, Round> rounds_of(const Json& trace) {
  std::map<RoundKey, Round> rounds;
  for (const Json& event : trace.at("events")) {
    const auto at_ns = event.at(0).get<uint64_t>();
    Round& round = rounds[{event.at(2).get<size_t>(), event.at(3).get<uint32_t>()}];
    const auto kind = event.at(1).get<unsigned>();
    if (kind == kFull) {
      round.full_ns = at_ns;
      continue;
    }
    if (kind == kSent) {
      round.sent_ns = at_ns;
      continue;
    }
    RankTimes& rank = round.ranks[event.at(4).get<uint32_t>()];
    switch (kind) {
      case kFirst: rank.first_ns = at_ns; break;
      case kLast: rank.last_ns = at_ns; break;
      case kParked: rank.parked_ns = at_ns; break;
      case kReleased: rank.released_ns = at_ns; break;
      case kReplied: rank.replied_ns = at_ns; break;
    }
  }
  return rounds;
}

// Writes the events of a page, one chunk round after the other.
class PageWriter {
 public:
  explicit PageWriter(TracePage& made) : made_(made) {}

  void add_round(const Json& chunk, uint32_t number, Round round) {
    const bool has_own_rounds = chunk.at("own_rounds").get<bool>();
    const bool is_sent_unasked = chunk.at("sent_unasked").get<bool>();
    for (const auto& [rank, times] : round.ranks) {
      // A late rank gets an answer of its own, perhaps much later, which does not count here.
      const bool was_in_time = times.first_ns && times.first_ns <= round.full_ns;
      if (was_in_time) round.sent_ns = std::max(round.sent_ns, times.replied_ns);
    }
    const bool is_shown = has_own_rounds ? round.full_ns && round.begun_ns() : round.is_whole();
    ++(is_shown ? made_.rounds : made_.unfinished);
    begin(chunk, number);
    if (has_own_rounds) {
      if (is_shown) add(*round.begun_ns(), *round.full_ns);
      for (const auto& [rank, times] : round.ranks) {
        add_rank(rank, times, is_sent_unasked ? round.full_ns : times.last_ns);
      }
    } else if (is_shown) {
      add_shared(round, chunk.at("priority").get<int64_t>());
    }
  }

  // Returns the events. Call it last.
  Json take() {
    for (const uint32_t pipeline : pipelines_) {
      events_.push_back({{"ph", "M"},
                         {"pid", pipeline},
                         {"name", "process_name"},
                         {"args", {{"name", "pipeline " + std::to_string(pipeline)}}}});
    }
    return std::move(events_);
  }

 private:
  void begin(const Json& chunk, uint32_t number) {
    span_ = {{"pid", chunk.at("pipeline").get<uint32_t>()},
             {"tid", 0},
             {"cat", "chunk"},
             {"id", id_++},
             {"name", chunk.at("tensor")},
             {"args",
              {{"part", chunk.at("part")},
               {"chunk", chunk.at("chunk")},
               {"round", number},
               {"tensor", chunk.at("tensor")},
               {"priority", chunk.at("priority")}}}};
  }

  void add_shared(const Round& round, int64_t priority) {
    const uint64_t begun_ns = *round.begun_ns();
    add(begun_ns, *round.sent_ns);
    span_["name"] = "aggregate";
    add(begun_ns, *round.full_ns);
    span_["name"] = "send";
    add(*round.full_ns, *round.sent_ns);
    for (const auto& [rank, times] : round.ranks) {
      if (!times.first_ns) continue;
      name_rank("arrive", rank);
      // A rank that was excluded meanwhile has no last fragment.
      add(*times.first_ns, times.last_ns.value_or(std::max(*times.first_ns, *round.full_ns)));
    }
    TracedRounds& rounds = made_.by_priority[priority];
    rounds.aggregate_s.push_back(seconds(begun_ns, *round.full_ns));
    rounds.send_s.push_back(seconds(*round.full_ns, *round.sent_ns));
  }

  // Adds the rank's own round as a span, with its parts as spans inside it. `due_ns`: when a read
  // that does not wait may be answered.
  void add_rank(uint32_t rank, const RankTimes& times, const Time& due_ns) {
    struct Part {
      const char* name;
      Time from_ns, to_ns;
      std::vector<double> TracedRank::*durations;
    };
    const Part parts[] = {
        {"push", times.first_ns, times.last_ns, &TracedRank::push_s},
        {"wait", times.parked_ns, times.released_ns, &TracedRank::wait_s},
        {"reply", std::max(times.released_ns, due_ns), times.replied_ns, &TracedRank::reply_s}};
    const auto is_there = [](const Part& part) {
      return part.from_ns && part.to_ns && *part.from_ns <= *part.to_ns;
    };
    Time from_ns, to_ns;
    for (const Part& part : parts) {
      if (!is_there(part)) continue;
      if (!from_ns) from_ns = part.from_ns;
      to_ns = part.to_ns;
      (made_.by_rank[rank].*part.durations).push_back(seconds(*part.from_ns, *part.to_ns));
    }
    if (!from_ns) return;
    name_rank("rank", rank);
    add(*from_ns, *to_ns);
    for (const Part& part : parts) {
      if (!is_there(part)) continue;
      span_["name"] = part.name;
      add(*part.from_ns, *part.to_ns);
    }
  }

  // Adds the span as a pair of asynchronous events, so that spans may overlap. Spans of one
  // category and id nest.
  void add(uint64_t from_ns, uint64_t to_ns) {
    Json event = span_;
    for (const bool begins : {true, false}) {
      event["ph"] = begins ? "b" : "e";
      event["ts"] = static_cast<double>(begins ? from_ns : to_ns) / 1e3;
      events_.push_back(event);
      event.erase("args");
    }
    pipelines_.insert(span_.at("pid").get<uint32_t>());
  }

  void name_rank(const char* category, uint32_t rank) {
    span_["cat"] = category;
    span_["id"] = std::to_string(id_ - 1) + "." + std::to_string(rank);
    span_["name"] = "rank " + std::to_string(rank);
  }

  TracePage& made_;
  Json events_ = Json::array();
  Json span_;  // belongs to the chunk round being added
  size_t id_ = 0;
  std::set<uint32_t> pipelines_;
};

}  // namespace

TracePage make_trace_page(const Json& trace) {
  TracePage made;
  PageWriter writer(made);
  for (const auto& [key, round] : rounds_of(trace)) {
    writer.add_round(trace.at("chunks").at(key.first), key.second, round);
  }
  made.page = {{"displayTimeUnit", "ms"},
               {"otherData",
                {{"job", trace.at("job")},
                 {"world_size", trace.at("world_size")},
                 {"recorded_seconds", trace.at("recorded_seconds")},
                 {"lost_events", trace.at("lost_events")},
                 {"rounds", made.rounds},
                 {"unfinished_rounds", made.unfinished}}},
               {"traceEvents", writer.take()}};
  return made;
}

}  // namespace pboxctl
