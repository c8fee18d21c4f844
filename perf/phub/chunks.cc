// Compares chunk sizes on the rack: the time of an exchange through a central box, and the CPU time
// of box and workers for it.
#include <iomanip>
#include <memory>

#include "perf/measure.h"
#include "perf/peers/peer.h"
#include "perf/phub/parts.h"
#include "perf/rack/cluster.h"
#include "perf/rack/job.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kWorkers = 4;
constexpr uint32_t kDefaultChunk = 0;
// A chunk has at most 64 packets, and a packet of the rack's MTU carries 8 KiB.
constexpr uint32_t kChunks[] = {4 << 10, kDefaultChunk, 128 << 10, 512 << 10};
constexpr uint32_t kChunksWhole[] = {4 << 10,  8 << 10,   16 << 10,  kDefaultChunk,
                                     64 << 10, 128 << 10, 256 << 10, 512 << 10};

struct Size {
  uint32_t chunk_bytes;
  std::unique_ptr<RackJob> job;
  std::vector<double> iteration_ms, cpu_ms;  // by turn; CPU time of one iteration, box and ranks
};

}  // namespace

nlohmann::json measure_chunks(const PhubSettings& settings, std::ostream& report) {
  const double worker_megabits = settings.megabits / kWorkers;
  Rack rack({.worker_count = kWorkers,
             .worker_link = RackCluster::link(worker_megabits),
             .box_link = RackCluster::link(settings.megabits)});
  const RackBox box = rack.start_box(0, phub_box_flags());
  std::vector<Size> sizes;
  const auto add = [&](uint32_t chunk_bytes) {
    sizes.push_back(
        {chunk_bytes,
         std::make_unique<RackJob>(rack, PlayerOptions{.box = box.control,
                                                       .job = "chunk" + std::to_string(chunk_bytes),
                                                       .model = settings.model,
                                                       .scale = settings.scale,
                                                       .chunk_bytes = chunk_bytes}),
         {},
         {}});
  };
  if (settings.whole) {
    for (const uint32_t chunk_bytes : kChunksWhole) add(chunk_bytes);
  } else {
    for (const uint32_t chunk_bytes : kChunks) add(chunk_bytes);
  }
  for (uint32_t turn = 0; turn < settings.turns; ++turn) {
    for (size_t index = 0; index < sizes.size(); ++index) {
      Size& size = sizes[(turn + index) % sizes.size()];
      const double box_start = process_cpu_seconds(box.program->pid());
      const auto run = size.job->play(settings.iterations, 0);
      const double cpu = run.cpu_seconds + process_cpu_seconds(box.program->pid()) - box_start;
      size.iteration_ms.push_back(median(run.iteration_ms));
      size.cpu_ms.push_back(cpu * 1e3 / settings.iterations);
      report << "\r  turn " << turn + 1 << "/" << settings.turns << std::flush;
    }
  }
  const double bytes = static_cast<double>(played_bytes(settings.model, settings.scale));
  const double limit_ms = bytes * 8 / (worker_megabits * 1e3);
  report << "\rchunks: " << kWorkers << " workers, a central box\n"
         << "     chunk    ms  over limit  CPU ms  CPU over the default chunk's\n";
  const Size* standard = nullptr;
  for (const Size& size : sizes) {
    if (size.chunk_bytes == kDefaultChunk) standard = &size;
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const Size& size : sizes) {
    const double cpu_ratio = median_ratio(size.cpu_ms, standard->cpu_ms);
    rows.push_back({{"chunk_bytes", size.chunk_bytes},
                    {"ms", median(size.iteration_ms)},
                    {"over_limit", median(size.iteration_ms) / limit_ms},
                    {"cpu_ms", median(size.cpu_ms)},
                    {"cpu_over_default", cpu_ratio}});
    report << std::setw(10)
           << (size.chunk_bytes == kDefaultChunk ? "default"
                                                 : std::to_string(size.chunk_bytes >> 10) + " KiB")
           << std::fixed << std::setprecision(0) << std::setw(6) << median(size.iteration_ms)
           << std::setprecision(3) << std::setw(12) << median(size.iteration_ms) / limit_ms
           << std::setprecision(0) << std::setw(8) << median(size.cpu_ms) << std::setprecision(2)
           << std::setw(8) << cpu_ratio << "\n";
  }
  for (const Size& size : sizes) size.job->finish();
  report << std::endl;
  return rows;
}

}  // namespace pbox::perf
