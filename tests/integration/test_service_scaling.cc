// Boxes of a cluster with a real etcd that are used and emptied as the cluster needs them, and the
// hook program that is told so.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "tests/support/box_cluster.h"
#include "tests/support/key_folder.h"

namespace pbox::test {
namespace {

using Json = nlohmann::json;

// A hook that appends each line it gets to a file.
class Hook {
 public:
  Hook() {
    folder_.write("hook", "#!/bin/sh\nprintf '%s\\n' \"$1\" >> '" + folder_.path() + "/lines'\n",
                  0755);
  }
  std::string path() const { return folder_.path() + "/hook"; }
  // Returns the boxes of all events of that kind; "" for an event without a box.
  std::multiset<std::string> told(const std::string& event) const {
    std::multiset<std::string> boxes;
    std::ifstream file(folder_.path() + "/lines");
    for (std::string text; std::getline(file, text);) {
      const Json line = Json::parse(text);
      if (line["event"] == event) boxes.insert(line.value("box", ""));
    }
    return boxes;
  }

 private:
  TemporaryFolder folder_;
};

std::vector<std::string> flags(const Hook& hook, const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--cluster.rebalance=false", "--cluster.scale=true",
                                    "--cluster.scale_after_s=1",
                                    "--cluster.scale_hook=" + hook.path()};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<std::string> standbys_of(const BoxCluster& boxes) {
  std::vector<std::string> names;
  const Json page = boxes_of(*boxes.all().front());
  for (const Json& box : page["boxes"]) {
    if (box["standby"]) names.push_back(box["name"]);
  }
  return names;
}

}  // namespace

TEST_CASE("standbys are used until enough boxes take parts, and the hook is asked for more") {
  const EtcdCluster etcd(1);
  const Hook hook;
  BoxCluster boxes(etcd, {"a", "b"},
                   flags(hook, {"--cluster.standby=true", "--cluster.boxes_min=3"}));
  REQUIRE(await([&] { return standbys_of(boxes).empty() && hook.told("scale_out").contains(""); }));
  SteadyTraining training({.box = boxes.control()});
  // Each box starts as a standby. The cluster needs three boxes: c is used at once, d stays a
  // standby.
  boxes.start("c");
  CHECK(await([&] { return standbys_of(boxes).empty(); }));
  boxes.start("d");
  CHECK(await([&] { return standbys_of(boxes) == std::vector<std::string>{"d"}; }));
  CHECK(await([&] { return hook.told("scale_in") == std::multiset<std::string>{"d"}; }));
  training.begin_rounds();
  training.end_rounds();
}

TEST_CASE("boxes that the others can replace are emptied while a job trains, and may stop") {
  const EtcdCluster etcd(1);
  const Hook hook;
  BoxCluster boxes(etcd, {"a", "b", "c"}, flags(hook, {}));
  SteadyTraining training({.box = boxes.control()});
  REQUIRE(await([&] { return hook.told("scale_in").size() == 2; }));
  const auto standbys = standbys_of(boxes);
  CHECK(hook.told("scale_in") == std::multiset<std::string>(standbys.begin(), standbys.end()));
  training.begin_rounds();
  for (const std::string& name : standbys) {
    CHECK(boxes.parts(name) == 0);
    boxes[name].program().signal(SIGTERM);
    CHECK(boxes[name].program().wait_exit(kDeadlineMs) == 0);
    boxes.remove(name);
  }
  training.end_rounds();
  for (const Daemon* box : boxes.all()) {
    CHECK(box->metric("pbox_jobs_failed_total") == 0);
    CHECK(box->metric("pbox_cluster_boxes") >= 1);
  }
}

}  // namespace pbox::test
