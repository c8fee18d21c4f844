#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <thread>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;

constexpr uint32_t kIntervalMax = 3600;
volatile std::sig_atomic_t stop_requested = 0;

options::options_description top_options() {
  auto description = admin_options();
  description.add_options()("interval",
                            options::value<uint32_t>()->default_value(2)->value_name("N"),
                            "seconds between two updates, 1 to 3600");
  description.add_options()("count", options::value<uint32_t>()->default_value(0)->value_name("N"),
                            "number of updates; 0: continue until interrupted");
  return description;
}

// The box's answers at one moment.
struct Moment {
  std::chrono::steady_clock::time_point when;
  Json box, jobs, stragglers;
};

std::optional<Moment> look(const options::variables_map& given) {
  auto box = fetch(given, "/api/v1/box");
  if (!box) return std::nullopt;
  auto jobs = fetch(given, "/api/v1/jobs");
  if (!jobs) return std::nullopt;
  auto stragglers = fetch(given, "/api/v1/stragglers");
  if (!stragglers) return std::nullopt;
  return Moment{std::chrono::steady_clock::now(), std::move(*box), std::move(*jobs),
                std::move(*stragglers)};
}

// Computes how fast counters grow between two moments. The rate of an object that did not exist at
// the first moment is 0.
class Rates {
 public:
  Rates(const Moment& before, const Moment& now)
      : seconds_(std::chrono::duration<double>(now.when - before.when).count()) {}
  double of(const Json& before, const Json& now, const char* key) const {
    const double grown = number_of(now, key) - number_of(before, key);
    return before.is_object() && grown > 0 && seconds_ > 0 ? grown / seconds_ : 0;
  }

 private:
  double seconds_;
};

// Returns the items of a list by the text of one of their fields.
std::map<std::string, Json> by(const Json& list, const char* key) {
  std::map<std::string, Json> found;
  for (const Json& item : list) found[item.value(key, Json()).dump()] = item;
  return found;
}

Json picture(const Moment& before, const Moment& now) {
  const Rates rates(before, now);
  Json pipelines = Json::array();
  const auto pipelines_before = by(list_of(before.box, "pipelines"), "index");
  for (const Json& pipeline : list_of(now.box, "pipelines")) {
    const auto found = pipelines_before.find(pipeline.value("index", Json()).dump());
    const Json nothing;
    const Json counters = pipeline.value("counters", Json::object());
    const Json earlier =
        found != pipelines_before.end() ? found->second.value("counters", Json::object()) : nothing;
    const auto rate = [&](const char* key) { return rates.of(earlier, counters, key); };
    pipelines.push_back({{"index", pipeline.value("index", Json())},
                         {"cpu", pipeline.value("cpu", Json())},
                         {"node", pipeline.value("node", Json())},
                         {"received_bytes_per_second", rate("pbox_rx_bytes_total")},
                         {"sent_bytes_per_second", rate("pbox_tx_bytes_total")},
                         {"chunk_rounds_per_second", rate("pbox_chunk_rounds_total")},
                         {"busy_ratio", rate("pbox_pipeline_busy_seconds_total")},
                         {"queued_chunks", number_of(counters, "pbox_pipeline_queued_chunks")}});
  }
  Json jobs = Json::array();
  const auto jobs_before = by(list_of(before.jobs, "jobs"), "name");
  const auto ledgers = by(list_of(now.stragglers, "jobs"), "job");
  for (const Json& job : list_of(now.jobs, "jobs")) {
    const std::string name = job.value("name", Json()).dump();
    const auto found = jobs_before.find(name);
    const Json earlier = found != jobs_before.end() ? found->second : Json();
    const auto ledger = ledgers.find(name);
    const Json late = ledger != ledgers.end() ? ledger->second : Json::object();
    const Json ranks = list_of(late, "ranks");
    const Json awaited = list_of(late, "awaited");
    jobs.push_back({{"name", job.value("name", Json())},
                    {"state", job.value("state", Json())},
                    {"world_size", job.value("world_size", Json())},
                    {"chunk_rounds_per_second", rates.of(earlier, job, "chunk_rounds")},
                    {"awaited", awaited.empty() ? Json() : awaited[0]},
                    {"latest", ranks.empty() ? Json() : ranks[0]}});
  }
  return {{"name", text_of(now.box, "name")},
          {"uptime_seconds", number_of(now.box, "uptime_seconds")},
          {"control_connections", number_of(now.box, "control_connections")},
          {"job_memory_bytes", number_of(now.box, "job_memory_bytes")},
          {"job_memory_limit_bytes", number_of(now.box, "job_memory_limit_bytes")},
          {"pipelines", std::move(pipelines)},
          {"jobs", std::move(jobs)}};
}

void print_jobs(const Json& page) {
  std::printf("\n%-24s %-10s %6s %14s  %-28s %s\n", "JOB", "STATE", "RANKS", "CHUNK ROUNDS/S",
              "WAITS FOR", "LATEST SO FAR");
  for (const Json& job : list_of(page, "jobs")) {
    std::string awaited = "-";
    if (job["awaited"].is_object()) {
      awaited = "rank " + std::to_string(static_cast<int>(number_of(job["awaited"], "rank"))) +
                " since " + in_time(number_of(job["awaited"], "waited_seconds"));
    }
    std::string latest = "-";
    if (number_of(job["latest"], "late_seconds") > 0) {
      latest = "rank " + std::to_string(static_cast<int>(number_of(job["latest"], "rank"))) +
               ", in all " + in_time(number_of(job["latest"], "late_seconds"));
    }
    std::printf("%-24s %-10s %6.0f %14.0f  %-28s %s\n", text_of(job, "name").c_str(),
                text_of(job, "state").c_str(), number_of(job, "world_size"),
                number_of(job, "chunk_rounds_per_second"), awaited.c_str(), latest.c_str());
  }
}

void print(const Json& page) {
  std::printf("box %s, up %s, %.0f workers, jobs hold %s of %s\n\n", text_of(page, "name").c_str(),
              in_time(number_of(page, "uptime_seconds")).c_str(),
              number_of(page, "control_connections"),
              in_units(number_of(page, "job_memory_bytes"), 1 << 20, "MiB").c_str(),
              in_units(number_of(page, "job_memory_limit_bytes"), 1 << 20, "MiB").c_str());
  std::printf("%-9s %5s %5s %14s %14s %14s %7s %7s\n", "PIPELINE", "CPU", "NODE", "RECEIVED",
              "SENT", "CHUNK ROUNDS/S", "BUSY", "QUEUED");
  for (const Json& pipeline : list_of(page, "pipelines")) {
    const auto number = [&](const char* key) {
      return pipeline[key].is_number() ? pipeline[key].dump() : std::string("-");
    };
    std::printf("%-9s %5s %5s %14s %14s %14.0f %5.0f %% %7.0f\n", number("index").c_str(),
                number("cpu").c_str(), number("node").c_str(),
                in_units(number_of(pipeline, "received_bytes_per_second"), 1e6, "MB/s").c_str(),
                in_units(number_of(pipeline, "sent_bytes_per_second"), 1e6, "MB/s").c_str(),
                number_of(pipeline, "chunk_rounds_per_second"),
                100 * number_of(pipeline, "busy_ratio"), number_of(pipeline, "queued_chunks"));
  }
  print_jobs(page);
}

int top(const options::variables_map& given, const Words& /*more*/) {
  const bool as_json = wants_json(given);
  const auto interval = given["interval"].as<uint32_t>();
  if (interval == 0 || interval > kIntervalMax) {
    return complain("top", "--interval = " + std::to_string(interval) + " must be 1 to 3600");
  }
  std::signal(SIGINT, [](int) { stop_requested = 1; });
  const auto count = given["count"].as<uint32_t>();
  auto before = look(given);
  if (!before) return kFailed;
  for (uint32_t shown = 0; count == 0 || shown < count; ++shown) {
    std::this_thread::sleep_for(std::chrono::seconds(interval));
    if (stop_requested != 0) return kDone;
    auto now = look(given);
    if (!now) return kFailed;
    const Json page = picture(*before, *now);
    if (as_json) {
      std::cout << page.dump() << std::endl;
    } else {
      if (isatty(STDOUT_FILENO) == 1) std::printf("\x1b[H\x1b[2J");
      print(page);
      std::fflush(stdout);
    }
    before = std::move(now);
  }
  return kDone;
}

}  // namespace

const Command kTop = {
    "top",
    "[options]",
    "watch a box: pipelines, jobs, late ranks",
    "Watches a box: how fast each pipeline receives and sends, how busy its core is, how fast each "
    "job\nmakes progress, and for which rank it waits. With --output json, prints one object per "
    "line.",
    top_options,
    top};

}  // namespace pboxctl
