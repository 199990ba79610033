// Records of calls: what a kernel cache answered, with the stamps of everything that answer depends
// on. Written by bringup.jit.store.call_records, checked here: a hundred calls of stat cost Python
// too much.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/export.h"

namespace bringup::runtime {

// The build that a call was answered with.
struct RecordedBuild {
  std::string key;
  std::string digest;  // of its binary
};

// The build that the record at `path` names, if this is still the boot it was written in, every
// file has the stamp that it had, and of the files that were looked for those are there that were.
// Otherwise nothing: also when there is no record, or it is damaged. `proved`: the key of the build
// for which this process has checked all of it before; for that one it looks only at what has to be
// looked at in every call. A record is these fields, a NUL after each:
//   "bringup call 2", key, digest, boot, number of files, of those for every call, number of
//   places, of those for every call,
//   for each file: path, stamp;  for each place: folder, stamp or "", number of names, names; "end"
// Those for every call come first. A stamp is "inode size mtime_ns ctime_ns". A place whose folder
// has its stamp holds; in another one each name is looked for, and has to be no file, or one if a
// slash comes before the name.
BRINGUP_API std::optional<RecordedBuild> recall_call(const std::string& path,
                                                     std::string_view proved);

}  // namespace bringup::runtime
