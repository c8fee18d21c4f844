// Snapshots in a folder, written and read by a thread of their own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "appliance/snapshot/store.h"

namespace pbox::snapshot {

// Made and used on the thread that runs `context`, which outlives it. What is being written when it
// goes away is given up.
class DiskSnapshotStore : public SnapshotStore {
 public:
  // `on_done`: after each answer, for what it has set off.
  DiskSnapshotStore(boost::asio::io_context& context, std::string directory,
                    std::function<void()> on_done);
  ~DiskSnapshotStore() override;

  void begin(const std::string& job, std::function<void(Result<uint64_t>)> done) override;
  void write_part(uint64_t number, PartHead head, Cuts cuts,
                  std::function<void(Result<PartFile>)> done) override;
  void finish(Manifest manifest, std::function<void(Status)> done) override;
  void load(PartHead part, Choice choice, std::function<void(Result<Restored>)> done) override;

 private:
  template <typename Work, typename Done>
  void run(Work work, Done done);

  boost::asio::io_context& context_;
  std::string directory_;
  std::function<void()> on_done_;
  std::atomic<bool> stopped_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  boost::asio::thread_pool thread_{1};
};

}  // namespace pbox::snapshot
