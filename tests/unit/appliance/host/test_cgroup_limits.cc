#include <catch2/catch.hpp>

#include "appliance/host/cgroup_limits.h"
#include "tests/unit/appliance/host/fake_tree.h"

namespace pbox::host {
TEST_CASE("version 2: the least limit on the way to the root counts") {
  FakeTree groups("cgroup_limits_test.folder");
  groups.write("/a/memory.max", "4000");
  groups.write("/a/b/memory.max", "9000");
  groups.write("/a/b/cpu.max", "150000 100000");
  groups.write("/a/cpu.max", "max 100000");
  const auto limits = read_cgroup_limits("0::/a/b\n", groups.root());
  CHECK(limits.memory_bytes == 4000);
  CHECK(limits.cpus == 1.5);
}

TEST_CASE("version 1: each controller has its own tree") {
  FakeTree groups("cgroup_limits_test.folder");
  groups.write("/memory/a/memory.limit_in_bytes", "5000");
  groups.write("/cpu/b/cpu.cfs_quota_us", "50000");
  groups.write("/cpu/b/cpu.cfs_period_us", "100000");
  const auto limits = read_cgroup_limits("4:memory:/a\n1:cpu,cpuacct:/b\n0::/\n", groups.root());
  CHECK(limits.memory_bytes == 5000);
  CHECK(limits.cpus == 0.5);
}

TEST_CASE("a path that a container cannot see falls back to its own root") {
  FakeTree groups("cgroup_limits_test.folder");
  groups.write("/memory/memory.limit_in_bytes", "6000");
  CHECK(read_cgroup_limits("4:memory:/docker/0123\n", groups.root()).memory_bytes == 6000);
}

TEST_CASE("no limit, in all the ways it is written, is 0") {
  FakeTree groups("cgroup_limits_test.folder");
  groups.write("/a/memory.max", "max");
  groups.write("/cpu/a/cpu.cfs_quota_us", "-1");
  groups.write("/cpu/a/cpu.cfs_period_us", "100000");
  const auto limits = read_cgroup_limits("0::/a\n1:cpu:/a\nnonsense\n::\n", groups.root());
  CHECK(limits.memory_bytes == 0);
  CHECK(limits.cpus == 0);
}

}  // namespace pbox::host
