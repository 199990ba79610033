// Visibility of libbringup_runtime: everything is hidden but what says BRINGUP_API.
#pragma once

#define BRINGUP_API __attribute__((visibility("default")))
