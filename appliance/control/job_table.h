// The jobs of one box, or the parts of them that it has, by name and part. Used on the control
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job.h"

namespace pbox::control {

using JobKey = std::pair<std::string, uint32_t>;  // name and part

inline JobKey key_of(const JobSpec& spec) {
  return {spec.name, spec.part};
}

class JobTable {
 public:
  // Returns null if there is no such part.
  Job* find(const JobKey& part) const {
    const auto found = jobs_.find(part);
    return found == jobs_.end() ? nullptr : found->second.get();
  }
  bool contains(const JobKey& part) const { return jobs_.contains(part); }
  // Returns whether some part of the job is here.
  bool has_job(const std::string& name) const {
    const auto first = jobs_.lower_bound({name, 0});
    return first != jobs_.end() && first->first.first == name;
  }
  std::vector<Job*> parts_of(const std::string& name) const {
    std::vector<Job*> parts;
    for (auto entry = jobs_.lower_bound({name, 0});
         entry != jobs_.end() && entry->first.first == name; ++entry) {
      parts.push_back(entry->second.get());
    }
    return parts;
  }
  bool empty() const { return jobs_.empty(); }
  // Entries are in ascending order of name and part.
  auto begin() const { return jobs_.begin(); }
  auto end() const { return jobs_.end(); }

  // Adds a part. There must be no part of that name and number yet.
  Job& add(std::unique_ptr<Job> job) {
    Job& added = *job;
    const bool is_new = jobs_.emplace(key_of(added.spec()), std::move(job)).second;
    PBOX_CHECK(is_new);  // the other job's shards would be freed while pipelines use them
    return added;
  }
  // Removes a part that is closed: the pipelines have given its shards back.
  void erase(const JobKey& part) {
    const auto found = jobs_.find(part);
    PBOX_CHECK(found != jobs_.end() && !found->second->running());
    jobs_.erase(found);
  }

 private:
  std::map<JobKey, std::unique_ptr<Job>> jobs_;
};

}  // namespace pbox::control
