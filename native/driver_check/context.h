// What a check works with: the driver, behind the kit's own checks, and what goes back by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver_check/calls.h"
#include "engine/util/concat.h"

namespace bringup::driver_check {

using Bytes = std::vector<uint8_t>;
using D = bringup_driver;  // for &D::mem_alloc

// A rule that does not hold, journalled at once: giving memory back may hang or crash as well.
struct Failure {
  Failure(std::string why, std::string wanted, std::string had);
  std::string reason;
  std::string expected;
  std::string got;
};
// A check that cannot be made on this driver.
struct Skipped {
  std::string reason;
};

// Files of device code.
struct Kernels {
  std::string host;    // for devices that run host code
  std::string device;  // of this device; it comes first
};

class Context;

// A host function that holds a stream up until it is opened, or two seconds are over.
class Gate {
 public:
  Gate(Context& context, int32_t device, bringup_stream stream);
  ~Gate() { open(); }
  Gate& operator=(Gate&&) = delete;
  // Skips the check where the driver runs host functions before host_func returns.
  void require_holding() const;
  void open();

 private:
  struct State {
    std::atomic<bool> open{false};
    std::atomic<bool> ended{false};
    std::thread::id caller = std::this_thread::get_id();
  };
  static void hold(void* user);
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class Context {
 public:
  // `table`: behind the kit's checks, with its substitutes; `raw`: the driver's own.
  Context(const bringup_driver& table, const bringup_driver& raw, Journal& journal,
          const Kernels& kernels, const std::string& library = "")
      : table_(table), raw_(raw), journal_(journal), kernels_(kernels), library_(library) {}

  const bringup_driver& table() const { return table_; }
  const bringup_driver& raw() const { return raw_; }
  Journal& journal() { return journal_; }
  const std::string& library() const { return library_; }  // the driver's file
  // The file of kernels for the driver's device code; "" when there is none.
  const char* kernels();

  template <auto Member>
  bool has() const {
    return announced(raw_, field_of<Member>());
  }

  // Calls a function of the driver; its status.
  template <auto Member, class... Arguments>
  int32_t call(const Arguments&... arguments) {
    const Field& field = field_of<Member>();
    const int32_t status = recorded_call(journal_, field, table_.*Member, arguments...);
    require_honest(field, status);
    return status;
  }

  // The same; anything but BRINGUP_OK fails the check.
  template <auto Member, class... Arguments>
  void must(const Arguments&... arguments) {
    const Field& field = field_of<Member>();
    const int32_t status = recorded_call(journal_, field, table_.*Member, arguments...);
    require_honest(field, status);
    if (status != BRINGUP_OK) refuse(field, status, "BRINGUP_OK");
  }

  // The same; anything but one failure fails the check.
  template <auto Member, class... Arguments>
  void must_give(int32_t expected, const Arguments&... arguments) {
    const int32_t status = call<Member>(arguments...);
    if (status != expected) refuse(field_of<Member>(), status, status_name(expected));
  }

  // The same; BRINGUP_OK fails the check. `given`: "for a file that does not exist".
  template <auto Member, class... Arguments>
  void must_fail(const std::string& given, const Arguments&... arguments) {
    if (call<Member>(arguments...) != BRINGUP_OK) return;
    throw Failure{std::string(field_of<Member>().name) + " returned BRINGUP_OK " + given,
                  "a failure", "BRINGUP_OK"};
  }

  // A query fails the check unless it says that there is work, behind a gate that is `where`.
  template <auto Query, class... Arguments>
  void must_be_pending(const Gate& gate, const char* where, const Arguments&... arguments) {
    gate.require_holding();
    const int32_t status = call<Query>(arguments...);
    gate.require_holding();
    if (status == BRINGUP_NOT_READY) return;
    throw Failure{concat(field_of<Query>().name, " returned ", status_name(status),
                         " while a host function ", where, " had not ended"),
                  "BRINGUP_NOT_READY", status_name(status)};
  }

  // Gives back what a check holds, whatever the driver says.
  template <auto Member, class... Arguments>
  void give_back(const Arguments&... arguments) {
    recorded_call(journal_, field_of<Member>(), table_.*Member, arguments...);
  }

  std::string words();  // last_error(), or ""
  int32_t device_count();
  bringup_device_props props(int32_t device);
  size_t alignment(int32_t device);
  // As much of `bytes` as leaves most of the device's memory free.
  size_t at_most(size_t bytes);

  void upload(int32_t device, void* dst, const Bytes& from, bringup_stream stream = nullptr);
  // The content of device memory; waits for the stream.
  Bytes download(int32_t device, const void* src, size_t bytes, bringup_stream stream = nullptr);
  void copy(bringup_copy_kind kind, int32_t device, void* dst, const void* src, size_t bytes,
            bringup_stream stream);
  void synchronize(int32_t device, bringup_stream stream);
  // event_query until it is done, for at most this long.
  void wait_done(bringup_event event, double seconds);

 private:
  template <auto Member>
  const Field& field_of() const {
    const auto at = reinterpret_cast<const char*>(&(table_.*Member));
    return *find_field(static_cast<size_t>(at - reinterpret_cast<const char*>(&table_)));
  }
  // The kit's own checks say what a call broke, whatever else would be found.
  void require_honest(const Field& field, int32_t status);
  [[noreturn]] void refuse(const Field& field, int32_t status, const char* expected);

  const bringup_driver& table_;
  const bringup_driver& raw_;
  Journal& journal_;
  const Kernels& kernels_;
  const std::string library_;
};

// What a check holds of the driver, which goes back by itself.
class Held {
 public:
  explicit Held(Context& context) : context_(context) {}
  Held& operator=(Held&&) = delete;

 protected:
  Context& context_;
};

// Device memory of a check.
class Memory : Held {
 public:
  Memory(Context& context, int32_t device, size_t bytes);
  ~Memory();
  uint8_t* data() const { return static_cast<uint8_t*>(address_); }
  size_t bytes() const { return bytes_; }
  void upload(const Bytes& content, bringup_stream stream = nullptr) const {
    context_.upload(device_, address_, content, stream);
  }
  // Fails where the memory holds something else. `what`: "the memory after the copy".
  void expect(const Bytes& content, const std::string& what, bringup_stream stream = nullptr) const;

 private:
  int32_t device_;
  size_t bytes_;
  void* address_ = nullptr;
};

class Stream : Held {
 public:
  explicit Stream(Context& context, int32_t device = 0, int32_t priority = 0);
  ~Stream();
  operator bringup_stream() const { return handle_; }

 private:
  int32_t device_;
  bringup_stream handle_ = nullptr;
};

class Event : Held {
 public:
  explicit Event(Context& context, int32_t device = 0, int32_t timing = 0);
  ~Event();
  operator bringup_event() const { return handle_; }

 private:
  bringup_event handle_ = nullptr;
};

// Bytes that differ from place to place and from seed to seed.
Bytes pattern(size_t bytes, uint64_t seed);
// Fails with the first byte that differs. `what`: "the memory after the copy".
void expect_bytes(const uint8_t* got, const uint8_t* expected, size_t bytes,
                  const std::string& what);
void expect_bytes(const Bytes& got, const Bytes& expected, const std::string& what);
template <class Wanted, class Got>
void expect(bool holds, const std::string& reason, const Wanted& wanted, const Got& got) {
  if (!holds) throw Failure{reason, concat(wanted), concat(got)};
}
void pause_milliseconds(int milliseconds);

}  // namespace bringup::driver_check
