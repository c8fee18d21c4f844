#include <cstdio>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

using Json = nlohmann::json;

unsigned long whole(const Json& object, const char* key) {
  return static_cast<unsigned long>(number_of(object, key));
}

// Prints the ranks that the job waits for now. They come first, because they explain a hang.
void print_awaited(const Json& job) {
  const Json awaited = list_of(job, "awaited");
  if (awaited.empty()) std::printf("  waits for no rank now\n");
  for (const Json& rank : awaited) {
    std::printf(
        "  waits for rank %lu (%s, %s) since %s: tensor '%s', round %lu; last packet %s ago\n",
        whole(rank, "rank"), text_of(rank, "peer").c_str(), text_of(rank, "state").c_str(),
        in_time(number_of(rank, "waited_seconds")).c_str(), text_of(rank, "tensor").c_str(),
        whole(rank, "round"), in_time(number_of(rank, "last_packet_age_seconds")).c_str());
  }
}

void print_ranks(const Json& job) {
  std::printf("  %-6s %-22s %-9s %10s %7s %10s %10s  %s\n", "RANK", "PEER", "STATE", "LAST",
              "SHARE", "LATE", "WORST", "WORST AT");
  for (const Json& rank : list_of(job, "ranks")) {
    std::string place = "-";
    if (number_of(rank, "worst_late_seconds") > 0) {
      place = "tensor '" + text_of(rank, "worst_tensor") + "', round " +
              std::to_string(whole(rank, "worst_round")) + ", " +
              in_time(number_of(rank, "worst_age_seconds")) + " ago";
    }
    std::printf("  %-6lu %-22s %-9s %10lu %5.1f %% %10s %10s  %s\n", whole(rank, "rank"),
                text_of(rank, "peer").c_str(), text_of(rank, "state").c_str(),
                whole(rank, "last_arrivals"), 100 * number_of(rank, "last_share"),
                in_time(number_of(rank, "late_seconds")).c_str(),
                in_time(number_of(rank, "worst_late_seconds")).c_str(), place.c_str());
  }
}

void print_tensors(const Json& job) {
  const Json tensors = list_of(job, "tensors");
  if (tensors.empty()) return;
  std::printf("  %-32s %10s %10s  %s\n", "TENSOR", "LATE", "WORST", "BY");
  for (const Json& tensor : tensors) {
    std::printf("  %-32s %10s %10s  rank %lu, round %lu\n", text_of(tensor, "tensor").c_str(),
                in_time(number_of(tensor, "late_seconds")).c_str(),
                in_time(number_of(tensor, "worst_late_seconds")).c_str(),
                whole(tensor, "worst_rank"), whole(tensor, "worst_round"));
  }
}

void print_rounds(const Json& job) {
  const Json rounds = list_of(job, "rounds");
  if (rounds.empty()) return;
  std::printf("  %-8s %10s %10s %10s  %s\n", "ROUND", "TOOK", "LATE", "AGE", "LAST");
  for (const Json& round : rounds) {
    std::printf("  %-8lu %10s %10s %10s  rank %lu, tensor '%s'\n", whole(round, "round"),
                in_time(number_of(round, "seconds")).c_str(),
                in_time(number_of(round, "late_seconds")).c_str(),
                in_time(number_of(round, "age_seconds")).c_str(), whole(round, "rank"),
                text_of(round, "tensor").c_str());
  }
}

void print_stragglers(const Json& page) {
  const Json jobs = list_of(page, "jobs");
  if (jobs.empty()) std::printf("this box has no jobs\n");
  for (const Json& job : jobs) {
    std::printf("job %s: %s, %lu ranks, %lu chunk rounds\n", text_of(job, "job").c_str(),
                text_of(job, "state").c_str(), whole(job, "world_size"),
                whole(job, "chunk_rounds"));
    print_awaited(job);
    print_ranks(job);
    print_tensors(job);
    print_rounds(job);
  }
}

int stragglers(const boost::program_options::variables_map& given, const Words& /*more*/) {
  return show_page(given, "/api/v1/stragglers", print_stragglers);
}

}  // namespace

const Command kStragglers = {
    "stragglers",
    "[options]",
    "show which ranks are late, how often, by how much and where",
    "Shows the ranks that each job waits for now. Then shows which ranks were the last, how often "
    "and by\nhow much, by rank, tensor and round. LAST: chunk rounds in which the rank was the "
    "last. "
    "LATE: how\nmuch earlier these rounds would have ended without it, in total.",
    admin_options,
    stragglers};

}  // namespace pboxctl
