#pragma once

#include <cstdio>

#include <gtest/gtest.h>

#include "tests/support/goldens.h"

namespace lockstep::test {

/// How far off the reference the running test is, for scripts/golden-table.py, which makes the table of docs/goldens.md.
inline void record_largest(const Golden& golden, const char* what, double largest) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", largest);
  testing::Test::RecordProperty("model", golden.name);
  testing::Test::RecordProperty(what, text);
  std::printf("%s: %s at most %s off\n", golden.name.c_str(), what, text);
}

}  // namespace lockstep::test
