// Counters of a job do not fall when one of its parts leaves the box.
#include <catch2/catch.hpp>

#include "appliance/control/retired_counts.h"

namespace pbox::control {
namespace {

JobView part_of_all_kinds() {
  JobView part;
  part.name = "job";
  part.workers.resize(2);
  part.chunk_rounds = 5;
  part.pulls = PullView{.pulls = 7, .delayed = 3, .parked_s = 0.5};
  part.grace = GraceView{.grace_s = 2, .is_unbounded = true, .rounds_cut = 11};
  part.backup.emplace().chunks_copied = 13;
  part.upstream.emplace().chunks_relayed = 17;
  return part;
}

}  // namespace

TEST_CASE("counts of a part that left stay in the job's counters, twice if it left twice") {
  RetiredCounts retired;
  retired.keep(part_of_all_kinds());
  retired.keep(part_of_all_kinds());
  JobView job = part_of_all_kinds();
  retired.add_to(job);
  CHECK(job.chunk_rounds == 15);
  CHECK(job.pulls->pulls == 21);
  CHECK(job.pulls->delayed == 9);
  CHECK(job.pulls->parked_s == 1.5);
  CHECK(job.grace->rounds_cut == 33);
  CHECK(job.backup->chunks_copied == 39);
  CHECK(job.upstream->chunks_relayed == 51);
}

TEST_CASE("the grace of a part that left is not the job's any more") {
  RetiredCounts retired;
  retired.keep(part_of_all_kinds());
  JobView job = part_of_all_kinds();
  job.grace = GraceView{.grace_s = 1, .rounds_cut = 2};
  retired.add_to(job);
  CHECK(job.grace->grace_s == 1);
  CHECK_FALSE(job.grace->is_unbounded);
  CHECK(job.grace->rounds_cut == 13);
}

TEST_CASE("a job whose last part left begins anew") {
  RetiredCounts retired;
  retired.keep(part_of_all_kinds());
  retired.forget("job");
  JobView job = part_of_all_kinds();
  retired.add_to(job);
  CHECK(job.grace->rounds_cut == 11);
}

}  // namespace pbox::control
