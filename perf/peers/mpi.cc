// pbox-peer-mpi: the exchange by Open MPI's MPI_Allreduce, in place, one call per tensor. mpirun
// starts the ranks; rank 0 reads the caller's commands. See peer.h for the commands.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>

#include "perf/peers/peer.h"

namespace {

using pbox::perf::Gradient;
using pbox::perf::PeerOptions;
using pbox::perf::Sample;

constexpr uint32_t kQuit = UINT32_MAX;  // sent in place of an iteration
constexpr useconds_t kIdlePoll = 500;

int rank_of_process() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int rank_count() {
  int count = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  return count;
}

// Broadcasts the next command from rank 0 and returns it. A blocking broadcast would spin and take
// a core from the system that is being measured, so this polls and sleeps in between.
uint32_t share_command(uint32_t command) {
  MPI_Request request;
  MPI_Ibcast(&command, 1, MPI_UINT32_T, 0, MPI_COMM_WORLD, &request);
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return command;
    usleep(kIdlePoll);
  }
}

// Every rank calls this; the sample is complete on rank 0 only.
Sample exchange(Gradient& gradient, uint32_t iteration) {
  gradient.fill(iteration, static_cast<uint32_t>(rank_of_process()));
  MPI_Barrier(MPI_COMM_WORLD);
  const double cpu_start = pbox::perf::process_cpu_seconds();
  const double start = MPI_Wtime();
  for (const auto& tensor : gradient.tensors()) {
    MPI_Allreduce(MPI_IN_PLACE, tensor.data(), static_cast<int>(tensor.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
  const double ms = (MPI_Wtime() - start) * 1e3;
  const double cpu_seconds = pbox::perf::process_cpu_seconds() - cpu_start;
  const uint64_t wrong = gradient.count_wrong(iteration, static_cast<uint32_t>(rank_count()));
  Sample all;
  MPI_Reduce(&ms, &all.ms, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&cpu_seconds, &all.cpu_seconds, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&wrong, &all.wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  return all;
}

int run_rank(const PeerOptions& options, Gradient& gradient) {
  if (rank_of_process() != 0) {
    for (uint32_t command = share_command(0); command != kQuit; command = share_command(0)) {
      exchange(gradient, command);
    }
    return 0;
  }
  const int status = pbox::perf::drive_peer(options, "openmpi", static_cast<uint32_t>(rank_count()),
                                            [&gradient](uint32_t iteration) {
                                              share_command(iteration);
                                              return exchange(gradient, iteration);
                                            });
  share_command(kQuit);
  return status;
}

int run(const PeerOptions& options, Gradient& gradient) {
  require_exchange(options);
  MPI_Init(nullptr, nullptr);
  const int status = run_rank(options, gradient);
  MPI_Finalize();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  return pbox::perf::peer_main(argc, argv, "mpi", run);
}
