#include <boost/program_options.hpp>
#include <cstdio>
#include <iostream>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

using Json = nlohmann::json;
using boost::program_options::variables_map;

void print_jobs(const Json& page) {
  const Json jobs = list_of(page, "jobs");
  if (jobs.empty()) {
    std::printf("this box has no jobs\n");
    return;
  }
  std::printf("%-24s %-10s %-9s %-6s %6s %8s %12s %12s %10s\n", "JOB", "STATE", "MODE", "SYNC",
              "RANKS", "TENSORS", "MEMORY", "CHUNK ROUNDS", "AGE");
  for (const Json& job : jobs) {
    const Json sync = job.value("sync", Json::object());
    std::printf("%-24s %-10s %-9s %-6s %6.0f %8.0f %12s %12.0f %10s\n",
                text_of(job, "name").c_str(), text_of(job, "state").c_str(),
                text_of(job, "mode").c_str(), text_of(sync, "model").c_str(),
                number_of(job, "world_size"), number_of(job, "tensor_count"),
                in_units(number_of(job, "memory_bytes"), 1 << 20, "MiB").c_str(),
                number_of(job, "chunk_rounds"), in_time(number_of(job, "age_seconds")).c_str());
  }
}

// Prints what the controllers of adaptive tensors have decided, and why.
void print_reasons(const Json& page) {
  bool any = false;
  for (const Json& job : list_of(page, "jobs")) {
    for (const Json& part : list_of(job.value("sync", Json::object()), "control")) {
      any = true;
      std::printf(
          "%s part %.0f: %s after %.0f decisions; ranks wait %.0f%% of the time, %.0f%% of the "
          "reads wait, the fastest rank leads by %.1f rounds\n",
          text_of(job, "name").c_str(), number_of(part, "part"), text_of(part, "rule").c_str(),
          number_of(part, "decisions"), 100 * number_of(part, "waited_share"),
          100 * number_of(part, "delayed_share"), number_of(part, "lead_rounds"));
      for (const Json& decision : list_of(part, "newest")) {
        std::printf("  %8s ago  %-18s %s\n", in_time(number_of(decision, "age_seconds")).c_str(),
                    text_of(decision, "rule").c_str(), text_of(decision, "why").c_str());
      }
    }
  }
  if (!any) std::printf("no job on this box has adaptive tensors\n");
}

boost::program_options::options_description jobs_options() {
  auto description = admin_options();
  description.add_options()("why",
                            "show the decisions of the controllers of adaptive tensors, and why");
  return description;
}

int jobs(const variables_map& given, const Words& /*more*/) {
  return show_page(given, "/api/v1/jobs", given.contains("why") ? print_reasons : print_jobs);
}

// Returns the number in printf's format, or "-" if the box does not state it.
std::string number_or_dash(const Json& object, const char* field, const char* format) {
  const auto number = object.find(field);
  if (number == object.end() || !number->is_number()) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, number->get<double>());
  return text;
}

void print_workers(const Json& job) {
  std::printf("%-24s %-6s %-22s %-9s %12s %12s %10s %10s %10s %10s %12s\n", "JOB", "RANK", "PEER",
              "STATE", "RECEIVED", "DUPLICATES", "LAST", "MISSED", "NONFINITE", "NORM",
              "LAST PACKET");
  for (const Json& worker : list_of(job, "workers")) {
    std::printf("%-24s %-6.0f %-22s %-9s %12s %12.0f %10.0f %10s %10.0f %10s %12s\n",
                text_of(job, "name").c_str(), number_of(worker, "rank"),
                text_of(worker, "peer").c_str(), text_of(worker, "state").c_str(),
                in_units(number_of(worker, "bytes_received"), 1 << 20, "MiB").c_str(),
                number_of(worker, "duplicates"), number_of(worker, "last_arrivals"),
                number_or_dash(worker, "missed_rounds", "%.0f").c_str(),
                number_of(worker, "nonfinite_fragments"),
                number_or_dash(worker, "gradient_norm", "%.3g").c_str(),
                in_time(number_of(worker, "last_packet_age_seconds")).c_str());
  }
  for (const Json& worker : list_of(job, "workers")) {
    if (number_of(worker, "nonfinite_fragments") == 0) continue;
    std::printf("%s: rank %.0f pushed infinities or NaNs, last %s ago: tensor '%s', round %.0f\n",
                text_of(job, "name").c_str(), number_of(worker, "rank"),
                in_time(number_of(worker, "nonfinite_age_seconds")).c_str(),
                text_of(worker, "nonfinite_tensor").c_str(), number_of(worker, "nonfinite_round"));
  }
}

// Prints the ranks of the named job, or of all jobs. The API has a single page for all jobs.
int workers(const variables_map& given, const Words& more) {
  const bool as_json = wants_json(given);
  const auto page = fetch(given, "/api/v1/jobs");
  if (!page) return kFailed;
  Json shown = Json::array();
  for (const Json& job : list_of(*page, "jobs")) {
    if (more.empty() || text_of(job, "name") == more[0]) shown.push_back(job);
  }
  if (shown.empty() && !more.empty()) {
    std::cerr << "pboxctl: no job '" << more[0]
              << "' is on this box; `pboxctl jobs` lists its jobs\n";
    return kFailed;
  }
  if (as_json) {
    std::cout << Json({{"jobs", std::move(shown)}}).dump(2) << '\n';
    return kDone;
  }
  if (shown.empty()) std::printf("this box has no jobs\n");
  for (const Json& job : shown) print_workers(job);
  return kDone;
}

}  // namespace

const Command kJobs = {
    "jobs",
    "[options]",
    "list the jobs of a box",
    "Lists the jobs of a box: their state, consistency model, ranks, memory and progress. --why "
    "shows the\ndecisions of controllers of adaptive tensors.",
    jobs_options,
    jobs};

const Command kWorkers = {
    "workers",
    "[JOB] [options]",
    "list the ranks of a job, or of all jobs",
    "Lists the ranks of a job, or of all jobs of a box: address, state, and what the box received. "
    "LAST:\nchunk rounds in which the rank was the last; `pboxctl stragglers` shows by how much. "
    "MISSED: chunk\nrounds that closed before its push was complete, model drop only. NONFINITE: "
    "fragments that it\npushed with an infinity or a NaN in them, or a value beyond the job's "
    "guard_max_abs; the newest\none is named. NORM: the norm of its newest gradient that the box "
    "has measured, over the parts of\nthe job on this box.",
    admin_options,
    workers,
    Command::More::kJob};

}  // namespace pboxctl
