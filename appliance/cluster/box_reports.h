// The newest reports of the other boxes of the cluster: the load of their parts, their jobs and
// their room. A box asks for them when it needs them, because in the cluster's store each change
// would become part of a history that grows. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "appliance/cluster/box_record.h"
#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::cluster {

class BoxReports {
 public:
  explicit BoxReports(boost::asio::io_context& context) : context_(context) {}
  ~BoxReports() { *alive_ = false; }
  BoxReports(const BoxReports&) = delete;
  BoxReports& operator=(const BoxReports&) = delete;

  // Asks each of `boxes`, except those that have not answered the last question yet. Forgets the
  // reports of all other boxes. An answer takes at most a second. Calls `done`, later, once all of
  // them have answered or failed.
  void ask(const std::vector<BoxRecord>& boxes, std::function<void()> done = nullptr);

  // The last answer of each box; a box that did not answer the last question is left out.
  const std::map<std::string, proto::BoxReport>& all() const { return reports_; }
  // Returns true if the box did not answer the last question at all. A box of another release
  // answers, but has no report.
  bool is_silent(const std::string& box) const { return silent_.contains(box); }

 private:
  struct Round {
    std::set<std::string> missing;  // boxes whose answer is outstanding
    std::function<void()> done;
  };

  void take(const std::string& box, Result<proto::BoxMessage> answer);

  boost::asio::io_context& context_;
  std::map<std::string, proto::BoxReport> reports_;
  std::set<std::string> silent_;
  std::set<std::string> asked_;  // boxes whose answer is outstanding
  std::vector<Round> rounds_;    // callers that wait for answers
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
