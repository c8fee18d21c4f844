// A real etcd of several members on free ports of loopback, each a process of its own.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon.h"

namespace pbox::test {

// Returns why etcd cannot run here; empty if it can.
std::string etcd_is_impossible();

class EtcdCluster {
 public:
  // Starts the members and waits until they answer; throws with their standard error if they do
  // not. With `tls`, clients must use TLS and show a certificate. `flags` are passed to etcd.
  explicit EtcdCluster(size_t member_count, bool tls = false, Arguments flags = {});
  ~EtcdCluster();
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  size_t size() const { return members_.size(); }
  std::vector<std::string> endpoints() const;  // HOST:PORT
  std::string folder() const {
    return folder_;
  }  // with `tls`: has ca.pem, box.pem, box.key, other-ca.pem

  void kill(size_t member) { members_[member].program.reset(); }
  void start(size_t member);
  void signal(size_t member, int number) const { members_[member].program->signal(number); }
  // Returns the answer of etcd's JSON gateway; empty if there is none.
  std::string post(size_t member, const std::string& path, const std::string& json) const;
  // Returns the revision of the store. version() returns how often the key has been written since
  // its creation.
  int64_t revision() const;
  int64_t version(const std::string& key) const;
  // Compacts and defragments member 0, and disarms its alarms, as an operator would.
  void free_space() const;
  size_t leader() const;  // throws if no member leads after kDeadlineMs

 private:
  struct Member {
    uint16_t client_port = 0;
    uint16_t peer_port = 0;
    std::unique_ptr<Program> program = {};
  };

  void await_answer() const;
  nlohmann::json range(const std::string& key) const;

  std::string folder_;
  bool tls_;
  Arguments flags_;
  std::vector<Member> members_;
};

}  // namespace pbox::test
