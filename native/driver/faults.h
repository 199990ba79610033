// What kernels with plain values say of calls that they cannot compute, such as an index beyond its
// dimension: no driver can tell, as device code returns nothing. A kernel whose args= has fault(),
// and one that torch.compile's generator gave a check, gets the address of a word in device memory,
// and writes the number of the broken rule there.
// Waits look at the words of a device that was given such kernels since it was last looked at, and
// answer as for a kernel that failed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bringup/driver.h"

namespace bringup::driver {

// What is 0 until a kernel writes it. The number alone will do, as an int32_t at the same address.
struct FaultWord {
  int32_t number;   // of the rule, from 1; written last
  int32_t claimed;  // by the worker whose value follows: 1
  int64_t value;    // in the place of "{}" in the rule
};

// The word of an operator's kernels on a device. Made at its first call, for as long as the process
// lives. A status of the driver where there is no memory for it.
int32_t fault_word(int32_t device, const char* name, const std::vector<std::string>& rules,
                   void** address);

class Faults {
 public:
  int32_t word(int32_t device, const char* name, const std::vector<std::string>& rules,
               void** address);

  // Work was given that may write words: after the call that gave it, so that no wait which is not
  // behind it takes its mark away.
  void launched(int32_t device, bringup_stream stream, const bringup_launch_values_args& launch);
  void graph_launched(bringup_graph graph, int32_t device, bringup_stream stream);

  // A graph got a node that may write words; all that a captured stream was given is one.
  void added(bringup_graph graph, int32_t device, const bringup_launch_values_args& launch);
  void captured(bringup_graph graph, int32_t device, bringup_stream stream);
  void destroyed(bringup_graph graph);
  // `part` is a graph of one of the nodes of `graph`, and launched with it.
  void made_for(bringup_graph part, bringup_graph graph);
  // The graph that is launched with this one in it: itself, or what it was made for.
  bringup_graph whole_of(bringup_graph graph);

  // Its memory is undefined, and failures are forgotten.
  int32_t reset(int32_t device);

  // Waits for a stream, or for all of a device where `whole`, and looks at its words after a wait
  // that ended well. Without device (-1): for an event, of whatever device it is.
  template <class Wait>
  int32_t watch(int32_t device, bringup_stream stream, bool whole, Wait wait) {
    if (marked_.load(std::memory_order_acquire) == 0) return wait();
    const Look look = begin(device, stream, whole);
    return end(look, wait());
  }

 private:
  static constexpr int32_t kDevices = 64;
  static constexpr size_t kWordsOfDevice = 16384;
  using Mark = std::pair<int32_t, bringup_stream>;

  struct Site {
    std::string name;
    std::vector<std::string> rules;
  };
  struct Words {
    std::atomic<FaultWord*> device_address{nullptr};
    FaultWord* view = nullptr;  // where the host sees them; null: they are copied
    bringup_stream reader = nullptr;
    std::vector<FaultWord> copies;  // the host's side of copies, under reading_
    std::vector<Site> sites;        // under mutex_
  };
  struct Look {
    std::vector<int32_t> devices;  // that may have something to say
    std::vector<Mark> taken;
  };

  bool names_word(int32_t device, const bringup_launch_values_args& launch) const;
  void mark(int32_t device, bringup_stream stream);
  Look begin(int32_t device, bringup_stream stream, bool whole);
  int32_t end(const Look& look, int32_t status);

  int32_t make(int32_t device);
  int32_t clear(int32_t device, size_t first, size_t count);
  int32_t read(int32_t device);
  int32_t copy_words(int32_t device, size_t count);

  std::array<Words, kDevices> words_;
  std::atomic<size_t> marked_{0};  // the size of marks_
  std::mutex mutex_;               // of what follows
  std::set<Mark> marks_;           // streams that were given such kernels since they were looked at
  std::set<bringup_graph> graphs_;
  std::map<bringup_graph, bringup_graph> wholes_;
  std::mutex reading_;  // of the copies, which no launch needs; before mutex_
};

}  // namespace bringup::driver
